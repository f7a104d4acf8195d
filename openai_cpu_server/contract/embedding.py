"""Requests to embed or to score texts, their results, and the `EmbedBackend` that computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from openai_cpu_server.contract.model_info import NativeModel
from openai_cpu_server.contract.request import EngineRequest


class EmbedRequest(EngineRequest, frozen=True, kw_only=True, omit_defaults=True, tag="embed"):
    """Inputs of one API call. Each input is computed as a whole and needs no cells of the KV pool."""

    inputs: tuple[tuple[int, ...], ...]
    """Tokens with special tokens. There is at least one input, and each has from one to
    `ModelInfo.max_input_tokens` tokens."""

    @property
    def adapter(self) -> None:
        """Return None, because only models that generate have adapters."""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.inputs))


class Embedded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Vectors that one step computed, for inputs `first`, `first + 1`, ... of a request.

    A request's vectors come in the order of its inputs. The event with the last vector, or with an error, is
    the request's last.
    """

    id: str
    first: int
    count: int
    """Number of inputs, or 0 if there is an error."""
    vectors: bytes = b""
    """Rows of `ModelInfo.embedding_size` float32 (little-endian), pooled but not normalised. A reranker's
    row holds its scores."""
    error: str | None = None
    """Reason why the request ends without the rest of its vectors."""


class EmbedResult(msgspec.Struct, frozen=True):
    """Result of a step. An interrupted step computed nothing."""

    vectors: bytes = b""
    interrupted: bool = False


class EmbedBackend(NativeModel, Protocol):
    def embed(self, inputs: Sequence[tuple[int, ...]]) -> EmbedResult:
        """Compute at most `info.max_seqs` inputs with at most `info.max_step_tokens` tokens in total.
        Raises `EmbeddingFailed` if one input cannot be computed; the others can be computed without it."""
