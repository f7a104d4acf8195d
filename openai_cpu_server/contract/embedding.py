"""Requests to embed or to score texts, their results, and the `EmbedBackend`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from openai_cpu_server.contract.model_info import NativeModel
from openai_cpu_server.contract.request import EngineRequest


class EmbedRequest(EngineRequest, frozen=True, kw_only=True, omit_defaults=True, tag="embed"):
    inputs: tuple[tuple[int, ...], ...]
    """At least one, each with 1 to `ModelInfo.max_input_tokens` tokens, special ones included."""

    @property
    def adapter(self) -> None: ...

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.inputs))


class Embedded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Vectors of one step, for inputs `first`, `first + 1`, ... in order. The last one, or an error, ends the
    request."""

    id: str
    first: int
    count: int
    """0 if there is an error."""
    vectors: bytes = b""
    """Rows of `ModelInfo.embedding_size` float32, little-endian, not normalised, or a reranker's scores."""
    error: str | None = None


class EmbedResult(msgspec.Struct, frozen=True):
    """An interrupted step computed nothing."""

    vectors: bytes = b""
    interrupted: bool = False


class EmbedBackend(NativeModel, Protocol):
    def embed(self, inputs: Sequence[tuple[int, ...]]) -> EmbedResult:
        """Compute at most `info.max_seqs` inputs with `info.max_step_tokens` tokens in total. Raises
        `EmbeddingFailed`."""
