"""Asks llama.cpp which tensors a model has whose file says this of itself, and thinks of weights for them."""

from __future__ import annotations

import ctypes
import math
import tempfile
from pathlib import Path

from gguf import GGUFWriter

from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.model.native import native_log
from random_model.architectures import Architecture, Facts
from random_model.tensors import LOGIT_STD, QUERY_KEY_GAIN, Constant, Matrix, Negative, Quant, Tensor

_Shapes = dict[str, tuple[int, ...]]

_NAMES_OF_LAST_NORM = ("output_norm", "token_embd_norm")
"""The first of them that a model has stands before its output matrix."""
_SLOW_DECAY = -4.0
"""RWKV's state keeps 0.99 of itself per token (exp(-0.6 sigmoid(x)))."""
_OFFSET_STD = 0.3
_FOR_QUANTISED = ("scale", "input_scale")
"""Ends of names of factors that belong to weights of few bits."""
_OFFSET_OF_SIZES = 16
"""Of a tensor's four sizes in `struct ggml_tensor`, behind its type and its buffer."""


class _InitParams(ctypes.Structure):
    """`gguf_init_params` of gguf.h."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def add_facts(writer: GGUFWriter, facts: Facts) -> None:
    adding = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in facts.items():
        adding[type(value)](key, value)


def wanted_tensors(model: Architecture, quiet: list[int]) -> list[Tensor]:
    """All of them with f32 weights. `quiet` are tokens that should hardly ever be sampled."""
    shapes = {name: shape for name, shape in _shapes(model).items() if not name.endswith(_FOR_QUANTISED)}
    last_norm = next(f"{name}.weight" for name in _NAMES_OF_LAST_NORM if f"{name}.weight" in shapes)
    return [
        Constant(name, shape, LOGIT_STD) if name == last_norm else _weights(name, shape, model, quiet)
        for name, shape in shapes.items()
    ]


def _weights(name: str, shape: tuple[int, ...], model: Architecture, quiet: list[int]) -> Tensor:
    """Scaled so that a normalised input gives an output of about 1 per element."""
    kind, f32 = name.removeprefix("blk.").lstrip("0123456789."), Quant.F32.base
    if "norm" in kind and kind.endswith("weight"):
        is_of_query = kind.startswith(("attn_q_norm", "attn_k_norm"))
        return Constant(name, shape, model.query_key_norm if is_of_query else 1.0)
    if kind.startswith(("ffn_norm", "rope_freqs", "layer_output_scale")):
        return Constant(name, shape)
    if kind == "time_mix_w0.weight":
        return Constant(name, shape, _SLOW_DECAY)
    if kind == "ssm_a":
        return Negative(name, shape, least=-0.5, most=-0.01)
    if kind == "token_embd.weight":
        return Matrix(name, shape, f32, model.embedding_std)
    if len(shape) == 1:
        return Matrix(name, shape, f32, _OFFSET_STD)
    gain = QUERY_KEY_GAIN if kind in ("attn_q.weight", "attn_k.weight") else 1.0
    rows = tuple(quiet) if kind == "output.weight" else ()
    return Matrix(name, shape, f32, gain / math.sqrt(shape[-1]), rows)


def _shapes(model: Architecture) -> _Shapes:
    """Names and shapes, columns last. Raises RuntimeError with the reason of llama.cpp."""
    found: _Shapes = {}

    def note(tensor: int, _: object) -> None:
        sizes = tuple((ctypes.c_int64 * 4).from_address(tensor + _OFFSET_OF_SIZES))
        last = max((axis for axis, size in enumerate(sizes) if size > 1), default=0)
        found[libggml.ggml_get_name(tensor).decode()] = sizes[last::-1]

    libggml.ggml_get_name.argtypes, libggml.ggml_get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
    log, callback = native_log(), llama_cpp.llama_model_set_tensor_data_t(note)
    header = _header(model)
    loaded = llama_cpp.llama_model_init_from_user(
        header, callback, None, llama_cpp.llama_model_default_params()
    )
    libggml.gguf_free(ctypes.c_void_p(header))
    if loaded is None:
        raise RuntimeError(f"{model.name}: {log.cause()}")
    llama_cpp.llama_model_free(loaded)
    return found


def _header(model: Architecture) -> int:
    """What a file with these facts and no tensors says, as llama.cpp reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "header.gguf"
        writer = GGUFWriter(path, model.llama_name)
        add_facts(writer, {**model.facts, "tokenizer.ggml.model": "no_vocab"})
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        libggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _InitParams]
        libggml.gguf_init_from_file.restype = ctypes.c_void_p
        header: int = libggml.gguf_init_from_file(str(path).encode(), _InitParams(no_alloc=True, ctx=None))
        return header
