"""Keys of answers, and the interface of stores."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from openai_cpu_server.contract.request import GenerationRequest, Priority

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|nowhere|neither|nor|without|cannot|except|unless)\b|n['’]t\b",
    re.IGNORECASE,
)
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")


def marks_of(text: str) -> Sequence[object]:
    """Return numbers, acronyms such as US, and the number of English negations. Embeddings hardly separate
    these: "safe to eat" and "not safe to eat" have a cosine of 0.993 (all-MiniLM-L6-v2)."""
    return [_NUMBER.findall(text), _CAPITALS.findall(text), len(_NEGATION.findall(text))]


_VERSION = 2
"""Grows with every change of keys or answers."""
_SAME_FOR_ALL = 0


class AnswerScope(msgspec.Struct, frozen=True, kw_only=True):
    """Scope within which answers are shared."""

    holder: str
    """Digest of the API key, or "" without keys."""
    model: str
    kv_type: str
    """Coarser types give other answers."""
    adapter: str | None
    version: str


class LastTurn(msgspec.Struct, frozen=True):
    text: str
    around: tuple[int, ...]
    """Prompt with a placeholder for this turn."""


class AnswerKey(msgspec.Struct, frozen=True, kw_only=True):
    scope: AnswerScope
    requests: tuple[GenerationRequest, ...]
    is_repeatable: bool
    """True for greedy sampling or a client's seed."""
    output_limit: int
    """Limit of output tokens for all requests together; 0 for none."""
    turn: LastTurn | None = None
    """Unset if turns are not compared."""


def exact_key(question: AnswerKey) -> str | None:
    """Return None if the answer differs each time."""
    if not question.is_repeatable:
        return None
    return _digest("exact", question.scope, [_deciding(request) for request in question.requests])


def group_key(question: AnswerKey, embedder: str) -> str | None:
    """Key of the turn's marks and all other turns, or None without a turn. `embedder`: the embedding model's
    identity."""
    if question.turn is None:
        return None
    alike = []
    for request in map(_deciding, question.requests):
        # Without the prompt, its length, and seeds that are drawn for each request.
        seed = request.sampling.seed if question.is_repeatable else _SAME_FOR_ALL
        sampling = msgspec.structs.replace(request.sampling, seed=seed)
        alike.append(msgspec.structs.replace(request, tokens=(), max_tokens=0, sampling=sampling))
    turn = question.turn
    facts = [embedder, question.output_limit, turn.around, marks_of(turn.text), alike]
    return _digest("group", question.scope, facts)


def turn_key(group: str, turn: LastTurn) -> str:
    return hashlib.sha256(f"{group}\n{turn.text}".encode(errors="surrogatepass")).hexdigest()


def _deciding(request: GenerationRequest) -> GenerationRequest:
    """Fields added later count by default."""
    is_greedy = request.sampling.temperature == 0
    seed = _SAME_FOR_ALL if is_greedy else request.sampling.seed
    return msgspec.structs.replace(
        request,
        id="",
        priority=Priority.INTERACTIVE,
        client="",
        reports_progress=False,
        account="",
        group="",
        route="",
        pin=False,
        boundaries=(),
        media_items=(),  # the prompt has numbers made of their digests
        sampling=msgspec.structs.replace(request.sampling, seed=seed),
    )


def _digest(kind: str, scope: AnswerScope, facts: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode([_VERSION, kind, scope, facts])).hexdigest()


_VECTOR_NUMBER = np.dtype("<f4")


class SimilarTurn(NamedTuple):
    key: str
    similarity: float


def direction(numbers: Sequence[float] | np.typing.NDArray[np.float32]) -> bytes | None:
    vector = np.asarray(numbers, _VECTOR_NUMBER)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0.0:
        return None
    return (vector / length).astype(_VECTOR_NUMBER).tobytes()


def nearest_turns(rows: Sequence[tuple[str, bytes]], vector: bytes, *, at_least: float) -> list[SimilarTurn]:
    """Return at most `FEW` rows of at least this similarity, most similar first. Rows of another length are
    skipped."""
    same = [(key, row) for key, row in rows if len(row) == len(vector)]
    if not same:
        return []
    table = np.frombuffer(b"".join(row for _, row in same), _VECTOR_NUMBER).reshape(len(same), -1)
    cosines = table @ np.frombuffer(vector, _VECTOR_NUMBER)
    order = np.argsort(-cosines, kind="stable")
    best = [SimilarTurn(same[index][0], float(cosines[index])) for index in order[:FEW]]
    return [near for near in best if near.similarity >= at_least]


GROUP_LIMIT = 2000
FEW = 8


class StoreFailed(Exception):
    """The message names a kind, without an address or password."""


class StoreBounds(NamedTuple):
    ttl_s: float
    max_bytes: int


class AnswerEntry(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    answer: bytes
    group: str | None = None
    vector: bytes | None = None
    """Embedding of length 1, or None if the answer can only be found by its key."""

    @property
    def num_bytes(self) -> int:
        return len(self.key) + len(self.answer) + len(self.vector or b"") + _OVERHEAD_BYTES


class StoreSize(NamedTuple):
    entries: int
    num_bytes: int


class AnswerStore(Protocol):
    """Methods raise StoreFailed. A cancelled call may have an effect."""

    async def get(self, key: str) -> bytes | None:
        """Return the answer, or None, as recently used."""

    async def near(self, group: str, vector: bytes, *, at_least: float) -> Sequence[SimilarTurn]:
        """Return at most `FEW` turns of the group, most similar first."""

    async def put(self, entry: AnswerEntry) -> StoreSize:
        """Store or replace an entry. Return the size afterwards."""

    async def forget(self, key: str, group: str | None) -> None:
        """`group`: where the answer was found, if it was."""

    async def clear(self) -> None: ...

    async def size(self) -> StoreSize:
        """Return the size, which may include expired answers."""

    async def close(self) -> None: ...


_OVERHEAD_BYTES = 200
"""Rows, keys and indices of an entry, estimated."""
