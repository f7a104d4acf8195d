"""Asks llama.cpp which tensors a model has whose file says this of itself, and thinks of weights for them."""

from __future__ import annotations

import ctypes
import math
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from gguf import GGUFWriter

from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.model.native import native_log
from random_model.architectures import Architecture, Facts
from random_model.blocks import BlockType
from random_model.tensors import (
    F32,
    LOGIT_STD,
    QUERY_KEY_GAIN,
    TIED_EMBEDDING_STD,
    Constant,
    Matrix,
    Negative,
    Quant,
    Tensor,
)

_Shapes = dict[str, tuple[int, ...]]

_LAST_NORMS = ("output_norm.weight", "token_embd_norm.weight")
"""The first of them that a model has stands before its output matrix."""
_SLOW_DECAY = -4.0
"""RWKV's state keeps 0.99 of itself per token (exp(-0.6 sigmoid(x)))."""
_OFFSET_STD = 0.3
_OUTPUT = "output.weight"
_FIRST_LAYER = "blk.0."
_DISPENSABLE = re.compile(r"(attn|ffn)_\w+\.bias$|^rope_freqs|^dense_2")
"""What llama.cpp takes if it is there, and what real models of most architectures do not have."""
_NEVER_QUANTISED = ("ffn_gate_inp.weight", "ssm_conv1d.weight", "shortconv.conv.weight")
_GAINS = {
    "attn_q.weight": QUERY_KEY_GAIN,
    "attn_k.weight": QUERY_KEY_GAIN,
    "ffn_down.weight": 2.0,
    "ffn_down_exps.weight": 4.0,
}
"""What is more than 1. A sum of experts, weighted with shares of 1, is smaller than each of them."""
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


def wanted_tensors(model: Architecture, quant: Quant, quiet: list[int]) -> list[Tensor]:
    """All tensors of the file. `quiet` are tokens that should hardly ever be sampled."""
    shapes = {name: shape for name, shape in _all_layers(model).items() if _is_wanted(name, model)}
    last_norm = next(name for name in _LAST_NORMS if name in shapes)
    weights = _Weights(model, quant, tuple(quiet), last_norm)
    return [weights.of(name, shape) for name, shape in shapes.items()]


def _is_wanted(name: str, model: Architecture) -> bool:
    if name.endswith(_FOR_QUANTISED) or (model.tied and name == _OUTPUT):
        return False
    return model.has_biases or _DISPENSABLE.search(name) is None


@dataclass(frozen=True)
class _Weights:
    """Scales weights so that a normalised input gives an output of about 1 per element."""

    model: Architecture
    quant: Quant
    quiet: tuple[int, ...]
    last_norm: str

    def of(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The weights of a tensor."""
        kind = name.removeprefix("blk.").lstrip("0123456789.")
        if name == self.last_norm:
            return Constant(name, shape, self._logit_gain(shape[-1]))
        if "norm" in kind and kind.endswith("weight"):
            is_of_query = kind.startswith(("attn_q_norm", "attn_k_norm"))
            return Constant(name, shape, self.model.query_key_norm if is_of_query else 1.0)
        if kind.startswith(("ffn_norm", "rope_freqs", "layer_output_scale")):
            return Constant(name, shape)
        if kind == "time_mix_w0.weight":
            return Constant(name, shape, _SLOW_DECAY)
        if kind == "ssm_a":
            return Negative(name, shape, least=-0.5, most=-0.01)
        if len(shape) == 1:
            return Matrix(name, shape, F32, _OFFSET_STD)
        if kind == "token_embd.weight":
            return self._embeddings(name, shape)
        std = _GAINS.get(kind, 1.0) / math.sqrt(shape[-1])
        return Matrix(name, shape, self._block(name, kind, shape), std, self.quiet if kind == _OUTPUT else ())

    def _logit_gain(self, width: int) -> float:
        return LOGIT_STD / math.sqrt(width) / TIED_EMBEDDING_STD if self.model.tied else LOGIT_STD

    def _embeddings(self, name: str, shape: tuple[int, ...]) -> Matrix:
        if self.model.tied:
            return Matrix(name, shape, self._block(name, _OUTPUT, shape), TIED_EMBEDDING_STD, self.quiet)
        return Matrix(name, shape, self._block(name, name, shape), self.model.embedding_std)

    def _block(self, name: str, kind: str, shape: tuple[int, ...]) -> BlockType:
        if not kind.endswith("weight") or kind in _NEVER_QUANTISED:
            return F32
        layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
        more = _gets_more_bits(layer, self.model.layers)
        return self.quant.block(kind, is_of_experts=len(shape) == 3, gets_more_bits=more)


def _gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's own choice for Q4_K_M (`use_more_bits` in src/llama-quant.cpp)."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _all_layers(model: Architecture) -> _Shapes:
    """Names and shapes. llama.cpp sets memory aside for f32 weights of all that it is asked for."""
    if not model.alike:
        return _shapes(model)
    asked = _shapes(replace(model, own_facts={**model.own_facts, "*.block_count": 1}))
    layer = {name.removeprefix(_FIRST_LAYER): asked.pop(name) for name in list(asked) if _FIRST_LAYER in name}
    return asked | {f"blk.{i}.{kind}": shape for i in range(model.layers) for kind, shape in layer.items()}


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
