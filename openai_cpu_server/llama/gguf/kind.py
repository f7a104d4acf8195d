"""What a model is for, read from its file's header before it is loaded."""

from __future__ import annotations

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.llama.gguf.header import GgufHeader

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
