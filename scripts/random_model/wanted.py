"""Asks llama.cpp which tensors a model has whose file says this of itself; random weights for any tensors."""

from __future__ import annotations

import ctypes
import math
import tempfile
from pathlib import Path

from gguf import GGUFWriter

from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.model.native import native_log
from random_model.architectures import Architecture, Facts
from random_model.tensors import (
    LOGIT_STD,
    QUERY_KEY_GAIN,
    TIED_EMBEDDING_STD,
    Constant,
    Matrix,
    Negative,
    Quant,
    Tensor,
)

Shapes = dict[str, tuple[int, ...]]
"""Of tensors, by name; the columns come last."""

_EMBEDDINGS = "token_embd.weight"
"""They are the output matrix too, if there is no other."""
_LAST_NORMS = ("output_norm.weight", "token_embd_norm.weight")
"""The first of them that a model has stands before its output matrix."""
_FACTORS = ("norm", "rope_f", "scale")
"""Parts of names of what something is multiplied with or divided by."""
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
    return weights_for(
        _shapes(model), quiet, embedding_std=model.embedding_std, query_key_norm=model.query_key_norm
    )


def weights_for(
    shapes: Shapes, quiet: list[int], *, embedding_std: float, query_key_norm: float
) -> list[Tensor]:
    """Scaled so that a normalised input gives each layer an output of about 1 per element."""
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith(_FOR_QUANTISED)}
    rows, logit_std, is_tied = tuple(quiet), LOGIT_STD, "output.weight" not in shapes
    if is_tied:
        embedding_std = TIED_EMBEDDING_STD
        logit_std /= TIED_EMBEDDING_STD * math.sqrt(shapes[_EMBEDDINGS][-1])
    found = {name: _weights(name, shape, rows, query_key_norm) for name, shape in shapes.items()}
    found[_EMBEDDINGS] = _f32(_EMBEDDINGS, shapes[_EMBEDDINGS], embedding_std, rows if is_tied else ())
    for last_norm in [name for name in _LAST_NORMS if name in shapes][:1]:
        found[last_norm] = Constant(last_norm, shapes[last_norm], logit_std)
    return list(found.values())


def _weights(name: str, shape: tuple[int, ...], quiet: tuple[int, ...], query_key_norm: float) -> Tensor:
    kind = name.removeprefix("blk.").lstrip("0123456789.")
    if kind in ("attn_q_norm.weight", "attn_k_norm.weight"):
        return Constant(name, shape, query_key_norm)
    if kind == "time_mix_w0.weight":
        return Constant(name, shape, _SLOW_DECAY)
    if kind == "ssm_a":
        return Negative(name, shape, least=-0.5, most=-0.01)
    if any(part in kind for part in _FACTORS) and not kind.endswith("bias"):
        return Constant(name, shape)
    if len(shape) == 1:
        return _f32(name, shape, _OFFSET_STD)
    gain = QUERY_KEY_GAIN if kind in ("attn_q.weight", "attn_k.weight") else 1.0
    return _f32(name, shape, gain / math.sqrt(shape[-1]), quiet if kind == "output.weight" else ())


def _f32(name: str, shape: tuple[int, ...], std: float, quiet_rows: tuple[int, ...] = ()) -> Matrix:
    return Matrix(name, shape, Quant.F32.base, std, quiet_rows)


def _shapes(model: Architecture) -> Shapes:
    """Raises RuntimeError with the reason of llama.cpp."""
    found: Shapes = {}

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
