"""A request to embed or to score texts, what comes back, and the `EmbedBackend` that computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from openai_cpu_server.contract.model_info import NativeModel
from openai_cpu_server.contract.request import EngineRequest


class EmbedRequest(EngineRequest, frozen=True, kw_only=True, omit_defaults=True, tag="embed"):
    """The inputs of one API call. Each is computed as a whole, and none needs cells of the KV pool."""

    inputs: tuple[tuple[int, ...], ...]
    """Tokens, special ones included: at least one input, each of at least one token, and of at most
    `ModelInfo.max_input_tokens`."""

    @property
    def adapter(self) -> None:
        """Adapters are for models that generate."""

    @property
    def num_tokens(self) -> int:
        """The tokens of all inputs."""
        return sum(map(len, self.inputs))


class Embedded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The vectors of a request's inputs `first`, `first + 1`, ...: those that one step has computed.

    A request's vectors come in the order of its inputs. The event that brings the last one is the request's
    last, and so is one with an error.
    """

    id: str
    first: int
    count: int
    """How many inputs; 0 if there is an error."""
    vectors: bytes = b""
    """Rows of `ModelInfo.embedding_size` float32 (little-endian), pooled but not normalised. A reranker's row
    holds its scores."""
    error: str | None = None
    """Why the request ends without the rest of its vectors."""


class EmbedResult(msgspec.Struct, frozen=True):
    """The result of a step; an interrupted one computed nothing."""

    vectors: bytes = b""
    """One row per input, as in `Embedded`."""
    interrupted: bool = False


class EmbedBackend(NativeModel, Protocol):
    """Owns a model that embeds or scores."""

    def embed(self, inputs: Sequence[tuple[int, ...]]) -> EmbedResult:
        """Compute these together: at most `info.max_seqs`, of `info.max_step_tokens` tokens in all.

        Raises `EmbeddingFailed` if one of them cannot be computed; the others can, without it.
        """
        ...
