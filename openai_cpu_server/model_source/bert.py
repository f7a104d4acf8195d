"""Conversion of a sentence-transformers BERT (config, WordPiece, safetensors) to GGUF."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Union

import msgspec
import numpy as np
import numpy.typing as npt

from openai_cpu_server.model_source.package import NotConvertible

_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TYPES = {np.dtype("<f4"): 0, np.dtype("<f2"): 1}
"""ggml's numbers."""

NewValue = Union[bool, int, float, str, Sequence[str], Sequence[int]]
NewTensor = Union[npt.NDArray[np.float32], npt.NDArray[np.float16]]


def write_gguf(file: BinaryIO, values: Mapping[str, NewValue], tensors: Mapping[str, NewTensor]) -> None:
    """Shapes are (rows, values of a row); integers become 32 bits, unsigned alone and signed in arrays."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(_string(key) + _value(value) for key, value in values.items())
    start = 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]  # ggml counts from the innermost dimension
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", _TYPES[tensor.dtype], start)
        start += tensor.nbytes + -tensor.nbytes % _ALIGNMENT
    for data in (head, *(np.ascontiguousarray(tensor).tobytes() for tensor in tensors.values())):
        file.write(data + bytes(-len(data) % _ALIGNMENT))


def _value(value: NewValue) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    texts = [element for element in value if isinstance(element, str)]
    if texts:
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, texts))
    return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _INT32, len(value), *value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


_POOLING_MEAN, _POOLING_CLS = 1, 2
_NORMAL, _CONTROL = 1, 3
_MOSTLY_F16 = 1
_WORD_START = "\u2581"

ReadFile = Callable[[str], bytes]
"""Reads a file of the model. Raises KeyError if there is none."""


class _Config(msgspec.Struct):
    model_type: str
    hidden_act: str
    hidden_size: int
    intermediate_size: int
    layer_norm_eps: float
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    type_vocab_size: int


class _Pooling(msgspec.Struct):
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False


class _WordPiece(msgspec.Struct):
    type: str
    vocab: dict[str, int]
    continuing_subword_prefix: str


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool


class _Normalizer(msgspec.Struct):
    lowercase: bool
    strip_accents: bool | None


class _Tokenizer(msgspec.Struct):
    model: _WordPiece
    added_tokens: list[_AddedToken]
    normalizer: _Normalizer


class _Described(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
_ALWAYS_F32 = ("position_embd.weight", "token_types.weight")
"""Added, not multiplied."""


def write_bert(read: ReadFile, file: BinaryIO, *, name: str) -> None:
    """Write f16 (norms and biases f32). Raises NotConvertible, OSError."""
    try:
        config = msgspec.json.decode(read("config.json"), type=_Config)
        tokenizer = msgspec.json.decode(read("tokenizer.json"), type=_Tokenizer)
        pooling = msgspec.json.decode(read("1_Pooling/config.json"), type=_Pooling)
        tensors = _tensors(read("model.safetensors"), config.num_hidden_layers)
    except KeyError as error:
        raise NotConvertible(f"{error.args[0]} is missing") from None
    except (msgspec.MsgspecError, struct.error, ValueError) as error:
        raise NotConvertible(str(error)) from None
    if (config.model_type, config.hidden_act) != ("bert", "gelu"):
        raise NotConvertible(f"it is {config.model_type} with {config.hidden_act}, not BERT with gelu")
    if tokenizer.model.type != "WordPiece":
        raise NotConvertible(f"its tokenizer is {tokenizer.model.type}, not WordPiece")
    if pooling.pooling_mode_cls_token == pooling.pooling_mode_mean_tokens:
        raise NotConvertible("it pools neither by the mean nor by the first token")
    facts: dict[str, NewValue] = {
        "general.architecture": "bert",
        "general.name": name,
        "general.file_type": _MOSTLY_F16,
        "bert.block_count": config.num_hidden_layers,
        "bert.context_length": config.max_position_embeddings,
        "bert.embedding_length": config.hidden_size,
        "bert.feed_forward_length": config.intermediate_size,
        "bert.attention.head_count": config.num_attention_heads,
        "bert.attention.layer_norm_epsilon": config.layer_norm_eps,
        "bert.attention.causal": False,
        "bert.pooling_type": _POOLING_MEAN if pooling.pooling_mode_mean_tokens else _POOLING_CLS,
        "tokenizer.ggml.token_type_count": config.type_vocab_size,
    }
    write_gguf(file, facts | _vocabulary(tokenizer), tensors)


def _vocabulary(tokenizer: _Tokenizer) -> dict[str, NewValue]:
    """Mark the beginnings of words for llama.cpp; WordPiece marks continuations."""
    ids, prefix = tokenizer.model.vocab, tokenizer.model.continuing_subword_prefix
    special = {token.content for token in tokenizer.added_tokens if token.special}
    tokens = sorted(ids, key=lambda token: ids[token])
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise NotConvertible("its vocabulary has gaps")
    normalizer = tokenizer.normalizer
    strips = normalizer.lowercase if normalizer.strip_accents is None else normalizer.strip_accents

    def marked(token: str) -> str:
        return token[len(prefix) :] if token.startswith(prefix) else _WORD_START + token

    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [token if token in special else marked(token) for token in tokens],
        "tokenizer.ggml.token_type": [_CONTROL if token in special else _NORMAL for token in tokens],
        "tokenizer.ggml.normalizer.lowercase": normalizer.lowercase,
        "tokenizer.ggml.normalizer.strip_accents": strips,
        **{
            f"tokenizer.ggml.{key}_token_id": ids[token]
            for key, token in (
                ("bos", "[CLS]"),
                ("eos", "[SEP]"),
                ("unknown", "[UNK]"),
                ("seperator", "[SEP]"),
                ("padding", "[PAD]"),
                ("mask", "[MASK]"),
            )
            if token in ids
        },
    }


def _tensors(safetensors: bytes, num_layers: int) -> dict[str, NewTensor]:
    (length,) = struct.unpack_from("<Q", safetensors)
    header = msgspec.json.decode(safetensors[8 : 8 + length], type=dict[str, msgspec.Raw])
    header.pop("__metadata__", None)
    described = {key: msgspec.json.decode(raw, type=_Described) for key, raw in header.items()}
    data = memoryview(safetensors)[8 + length :]
    if not 0 < num_layers <= len(described):
        raise NotConvertible(f"it counts {num_layers:,} layers, and has {len(described):,} tensors")
    names = _EMBEDDINGS | {
        f"encoder.layer.{layer}.{theirs}.{part}": f"blk.{layer}.{ours}.{part}"
        for layer in range(num_layers)
        for theirs, ours in _LAYER.items()
        for part in ("weight", "bias")
    }
    return {ours: _converted(ours, described[theirs], data) for theirs, ours in names.items()}


def _converted(name: str, described: _Described, data: memoryview) -> NewTensor:
    if described.dtype != "F32":
        raise NotConvertible(f"{name} is {described.dtype}, not F32")
    start, end = described.data_offsets
    values = np.frombuffer(data[start:end], "<f4").reshape(described.shape)
    is_weight = values.ndim > 1 and name not in _ALWAYS_F32
    return values.astype("<f2") if is_weight else values
