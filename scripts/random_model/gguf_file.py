"""Writes a model tensor by tensor, to hold one in memory. llama.cpp requests the tensors by the file's
metadata."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gguf import GGML_QUANT_VERSION, GGUFWriter

from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.model.model import native_log
from random_model.architectures import Architecture, Facts
from random_model.heads import assistant_shapes, with_fused_products
from random_model.tensors import (
    F32,
    LOGIT_STD,
    QUERY_KEY_GAIN,
    TIED_EMBEDDING_STD,
    BlockType,
    Constant,
    Matrix,
    Negative,
    Quant,
    Tensor,
)
from random_model.vocabulary import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, Vocabulary

Shapes = dict[str, tuple[int, ...]]
"""Columns come last."""

_HEAD_NORMS = ("nextn.shared_head_norm.weight", "layer_output_norm.weight")
_HEAD_STD = 10.0
"""Spread of logits: wide enough for drafts, which unlikely tokens end."""
_LAST_NORMS = ("output_norm.weight", "token_embd_norm.weight")
"""The first one of a model precedes its output matrix."""
_FACTORS = ("norm", "rope_f", "scale")
_SLOW_DECAY = -4.0
"""RWKV's state keeps 0.99 of itself per token (exp(-0.6 sigmoid(x)))."""
_OFFSET_STD = 0.3
_ASSISTANT = "gemma4-assistant"
_FUSED = "mimo2"
_OUTPUT = "output.weight"
_EMBEDDINGS = "token_embd.weight"
_LAYER = "blk."
_DISPENSABLE = re.compile(r"(attn|ffn)_\w+\.bias$|^rope_freqs|^dense_2|nextn\.embed_tokens")
"""Optional tensors that real models of most architectures do not have."""
_NEVER_QUANTISED = ("ffn_gate_inp.weight", "ssm_conv1d.weight", "shortconv.conv.weight")
_GAINS = {
    "attn_q.weight": QUERY_KEY_GAIN,
    "attn_k.weight": QUERY_KEY_GAIN,
    "ffn_down.weight": 2.0,
    "ffn_down_exps.weight": 4.0,
}
"""Scales above 1. A sum of experts, weighted with shares of 1, is smaller than each."""
_FOR_QUANTISED = ("scale", "input_scale")
_OFFSET_OF_SIZES = 16
"""Offset of the four sizes in `struct ggml_tensor`, after its type and its buffer."""


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
    """Return all tensors of the file. `quiet`: tokens that should hardly ever be sampled."""
    shapes = {name: shape for name, shape in _all_layers(model).items() if _is_wanted(name, model)}
    return weights_for(
        shapes, quiet, embedding_std=model.embedding_std, query_key_norm=model.query_key_norm, quant=quant
    )


def _is_wanted(name: str, model: Architecture) -> bool:
    if model.tied and name == _OUTPUT:
        return False
    return model.has_biases or _DISPENSABLE.search(name) is None


def weights_for(
    shapes: Shapes, quiet: list[int], *, embedding_std: float, query_key_norm: float, quant: Quant = Quant.F32
) -> list[Tensor]:
    """Scale weights so that a normalised input gives each layer an output of about 1 per element."""
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith(_FOR_QUANTISED)}
    num_layers = 1 + max((_layer(name) for name in shapes if name.startswith(_LAYER)), default=-1)
    weights = _Weights(quant, num_layers, tuple(quiet), query_key_norm)
    found = {name: weights.of(name, shape) for name, shape in shapes.items()}
    is_tied, logit_std = _OUTPUT not in shapes, LOGIT_STD
    if is_tied:
        embedding_std = TIED_EMBEDDING_STD
        logit_std /= TIED_EMBEDDING_STD * math.sqrt(shapes[_EMBEDDINGS][-1])
    found[_EMBEDDINGS] = weights.embeddings(shapes[_EMBEDDINGS], embedding_std, is_tied=is_tied)
    for last_norm in [name for name in _LAST_NORMS if name in shapes][:1]:
        found[last_norm] = Constant(last_norm, shapes[last_norm], logit_std)
    return list(found.values())


@dataclass(frozen=True)
class _Weights:
    quant: Quant
    layers: int
    quiet: tuple[int, ...]
    query_key_norm: float

    def of(self, name: str, shape: tuple[int, ...]) -> Tensor:
        kind = _kind(name)
        if kind in ("attn_q_norm.weight", "attn_k_norm.weight"):
            return Constant(name, shape, self.query_key_norm)
        if kind in _HEAD_NORMS:
            return Constant(name, shape, _HEAD_STD)
        if kind == "time_mix_w0.weight":
            return Constant(name, shape, _SLOW_DECAY)
        if kind == "ssm_a":
            return Negative(name, shape, least=-0.5, most=-0.01)
        if any(part in kind for part in _FACTORS) and not kind.endswith("bias"):
            return Constant(name, shape)
        if len(shape) == 1:
            return Matrix(name, shape, F32, _OFFSET_STD)
        std = _GAINS.get(kind, 1.0) / math.sqrt(shape[-1])
        return Matrix(name, shape, self._block(name, shape), std, self.quiet if kind == _OUTPUT else ())

    def embeddings(self, shape: tuple[int, ...], std: float, *, is_tied: bool) -> Matrix:
        block = self._block(_OUTPUT if is_tied else _EMBEDDINGS, shape)
        return Matrix(_EMBEDDINGS, shape, block, std, self.quiet if is_tied else ())

    def _block(self, name: str, shape: tuple[int, ...]) -> BlockType:
        kind = _kind(name)
        if not kind.endswith("weight") or kind in _NEVER_QUANTISED:
            return F32
        more = name.startswith(_LAYER) and _gets_more_bits(_layer(name), self.layers)
        return self.quant.block(kind, is_of_experts=len(shape) == 3, gets_more_bits=more)


def _kind(name: str) -> str:
    return name.removeprefix(_LAYER).lstrip("0123456789.")


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's own choice for Q4_K_M (`use_more_bits` in src/llama-quant.cpp)."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _all_layers(model: Architecture) -> Shapes:
    """llama.cpp reserves f32 memory for all requested tensors."""
    if model.llama_name == _ASSISTANT:
        return assistant_shapes(model)
    if not model.alike:
        return _shapes(model)
    shapes = _shapes(replace(model, own_facts={**model.own_facts, "*.block_count": 1}))
    layer = {_kind(name): shapes.pop(name) for name in list(shapes) if name.startswith(_LAYER)}
    return shapes | {
        f"{_LAYER}{i}.{kind}": shape for i in range(model.layers) for kind, shape in layer.items()
    }


def _shapes(model: Architecture) -> Shapes:
    found: Shapes = {}

    def note(tensor: int, _: object) -> None:
        sizes = tuple((ctypes.c_int64 * 4).from_address(tensor + _OFFSET_OF_SIZES))
        last = max((axis for axis, size in enumerate(sizes) if size > 1), default=0)
        found[libggml.ggml_get_name(tensor).decode()] = sizes[last::-1]

    libggml.ggml_get_name.argtypes, libggml.ggml_get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
    log, callback = native_log(), llama_cpp.llama_model_set_tensor_data_t(note)
    header = _header(model)
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = model.has_heads
    loaded = llama_cpp.llama_model_init_from_user(header, callback, None, params)
    libggml.gguf_free(ctypes.c_void_p(header))
    if loaded is None:
        raise RuntimeError(f"{model.name}: {log.cause()}")
    llama_cpp.llama_model_free(loaded)
    return with_fused_products(found) if model.llama_name == _FUSED else found


def _header(model: Architecture) -> int:
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


_CHAT_TEMPLATE = Path(__file__).with_name("chatml.jinja")

Progress = Callable[[int, int], None]


def write_model(
    path: Path, model: Architecture, quant: Quant, vocab: Vocabulary, *, seed: int, on_progress: Progress
) -> None:
    """Write the file whole or not at all. Equal arguments give equal bytes. Raises OSError."""
    tensors = wanted_tensors(model, quant, vocab.quiet)
    total, written = sum(tensor.num_bytes for tensor in tensors), 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with contextlib.closing(GGUFWriter(partial, model.llama_name)) as writer:
            writer.add_name(f"random {model.name}")
            writer.add_description("Random weights: says nothing sensible. For tests and benchmarks.")
            writer.add_file_type(quant.file_type)
            writer.add_quantization_version(GGML_QUANT_VERSION)
            add_facts(writer, model.facts)
            add_tokenizer(writer, vocab)
            for tensor in tensors:
                size = tensor.num_bytes
                writer.add_tensor_info(tensor.name, tensor.shape, "f4", size, raw_dtype=tensor.type)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in tensors:
                writer.write_tensor_data(tensor.data(seed))
                written += tensor.num_bytes
                on_progress(written, total)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def add_tokenizer(writer: GGUFWriter, vocab: Vocabulary) -> None:
    tokenizer = vocab.tokenizer
    writer.add_tokenizer_model(tokenizer.model)
    writer.add_token_list(vocab.texts)
    writer.add_token_types([int(kind) for kind in vocab.kinds])
    if tokenizer.pre is None:
        writer.add_token_scores(vocab.scores)
    else:
        writer.add_tokenizer_pre(tokenizer.pre)
        writer.add_token_merges(vocab.merges)
    writer.add_bos_token_id(tokenizer.bos)
    writer.add_eos_token_id(tokenizer.eos)
    writer.add_unk_token_id(tokenizer.unknown)
    writer.add_add_bos_token(tokenizer.adds_bos)
    writer.add_add_eos_token(False)
    # Decoding gives back exactly what was encoded; a first word without a space is spelt in fragments.
    writer.add_add_space_prefix(False)
    if FIM_PREFIX in vocab.texts:
        for name, text in (("pre", FIM_PREFIX), ("suf", FIM_SUFFIX), ("mid", FIM_MIDDLE)):
            writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", vocab.texts.index(text))
    writer.add_chat_template(_CHAT_TEMPLATE.read_text(encoding="utf-8").rstrip("\n"))
