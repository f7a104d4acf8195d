"""What a model file is: its quantisation, by the names in common use, and what it is for."""

from __future__ import annotations

import difflib

import msgspec

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader


class FileType(msgspec.Struct, frozen=True):
    name: str
    number: int
    """The number in llama.cpp's LLAMA_FTYPE."""
    base: str
    """The tensor type of most weights; "" where they stay as they are."""
    remark: str = ""
    needs_importance: bool = False
    """llama.cpp refuses to make it without an importance matrix."""


_MIXED = "some tensors in more bits"
_COPY = "copy"

FILE_TYPES = {
    kind.name: kind
    for kind in (
        FileType("f32", 0, "f32"),
        FileType("bf16", 32, "bf16"),
        FileType("f16", 1, "f16"),
        FileType("q8_0", 7, "q8_0", "hardly to be told from f16"),
        FileType("q6_k", 18, "q6_K"),
        FileType("q5_k_m", 17, "q5_K", _MIXED),
        FileType("q5_k_s", 16, "q5_K"),
        FileType("q5_1", 9, "q5_1"),
        FileType("q5_0", 8, "q5_0"),
        FileType("q4_k_m", 15, "q4_K", f"{_MIXED}; what most people use"),
        FileType("q4_k_s", 14, "q4_K"),
        FileType("q4_1", 3, "q4_1"),
        FileType("q4_0", 2, "q4_0"),
        FileType("iq4_nl", 25, "iq4_nl"),
        FileType("iq4_xs", 30, "iq4_xs"),
        FileType("mxfp4_moe", 38, "mxfp4", "mxfp4 for experts, q8_0 for the rest"),
        FileType("q3_k_l", 13, "q3_K", _MIXED),
        FileType("q3_k_m", 12, "q3_K", _MIXED),
        FileType("q3_k_s", 11, "q3_K"),
        FileType("iq3_m", 27, "iq3_s", _MIXED),
        FileType("iq3_s", 26, "iq3_s"),
        FileType("iq3_xs", 22, "iq3_s", "some tensors in fewer bits", needs_importance=True),
        FileType("iq3_xxs", 23, "iq3_xxs", needs_importance=True),
        FileType("q2_k", 10, "q2_K", _MIXED),
        FileType("q2_k_s", 21, "q2_K", needs_importance=True),
        FileType("iq2_m", 29, "iq2_s", _MIXED, needs_importance=True),
        FileType("iq2_s", 28, "iq2_xs", _MIXED, needs_importance=True),
        FileType("iq2_xs", 20, "iq2_xs", needs_importance=True),
        FileType("iq2_xxs", 19, "iq2_xxs", needs_importance=True),
        FileType("q2_0", 41, "q2_0", "for models trained so"),
        FileType("tq2_0", 37, "tq2_0", "for ternary models"),
        FileType("iq1_m", 31, "iq1_m", needs_importance=True),
        FileType("tq1_0", 36, "tq1_0", "for ternary models"),
        FileType("iq1_s", 24, "iq1_s", needs_importance=True),
        FileType("q1_0", 40, "q1_0", "for models trained so"),
        FileType(_COPY, 0, "", "as they are: makes one file of several parts"),
    )
}
"""All types, the best first.
Types that llama.cpp reads but does not make (nvfp4) are missing, and its short names."""

_SHORT = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "fp16": "f16", "fp32": "f32"}
_READ_ONLY = {"nvfp4": 39}


def file_type_named(name: str) -> FileType:
    """Find a type: `q4_k` means `q4_k_m`, case does not matter.
    Raises `StartupError` with the nearest names."""
    wanted = name.lower().replace("-", "_")
    found = FILE_TYPES.get(_SHORT.get(wanted, wanted))
    if found is None:
        near = difflib.get_close_matches(wanted, FILE_TYPES, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise StartupError(f"there is no type {name!r}: {hint}--type list shows all")
    return found


def file_type_name(number: int) -> str | None:
    """The name of the type that a file states; None for an unknown number."""
    known = {kind.number: kind.name for kind in FILE_TYPES.values() if kind.name != _COPY}
    return (known | {number: name for name, number in _READ_ONLY.items()}).get(number)


def is_copy(kind: FileType) -> bool:
    return kind.name == _COPY


_POOLING_NONE, _POOLING_RANK = 0, 4
"""llama.cpp's LLAMA_POOLING_TYPE_NONE and LLAMA_POOLING_TYPE_RANK."""
_EMBEDDING_ARCHITECTURES = frozenset(
    (
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "llama-embed",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "t5encoder",
    )
)
"""llama.cpp's names of architectures that have no head for the next token, or are trained without one."""


def model_kind(header: GgufHeader) -> ModelKind:
    """A model that pools embeds, whatever its architecture: causal models too. One that ranks reranks.

    Without a word about pooling the architecture decides, or that attention is not causal.
    """
    pooling = header.get_int(header.for_architecture("pooling_type")) or _POOLING_NONE
    if pooling == _POOLING_RANK:
        return ModelKind.RERANKS
    is_causal = header.get_bool(header.for_architecture("attention.causal"))
    embeds = pooling != _POOLING_NONE or header.architecture in _EMBEDDING_ARCHITECTURES
    return ModelKind.EMBEDS if embeds or is_causal is False else ModelKind.GENERATES
