"""A request to embed or to score texts, as the engine sees it, and what comes back."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.request import Priority


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The inputs of one API call. Each is computed as a whole, and none needs cells of the KV pool."""

    id: str
    inputs: tuple[tuple[int, ...], ...]
    """Tokens, special ones included: at least one input, each of at least one token, and of at most
    `ModelInfo.max_input_tokens`."""
    priority: Priority = Priority.INTERACTIVE
    client: str = ""
    """Whom to be fair to, as in `GenerationRequest`."""
    route: str = ""


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of a request's inputs `first`, `first + 1`, ...: those that one step has computed."""

    id: str
    first: int
    vectors: bytes
    """Rows of `ModelInfo.embedding_size` float32 (little-endian), pooled but not normalised. A reranker's row
    holds its scores."""
    error: str | None = None
    """Why the request ends without the rest of its vectors."""
