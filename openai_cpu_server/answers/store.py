"""What is asked for, and where answers are stored: the question, and what every store can."""

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
    """Its numbers in their order, its capitals such as US, and how often it says no, in English.

    Vectors of sentences hardly tell these from one another. Measured on all-MiniLM-L6-v2: "Is it safe to eat
    raw eggs?" and "Is it not safe to eat raw eggs?" have a cosine of 0.993. So turns are compared only where
    these marks agree.
    """
    return [_NUMBER.findall(text), _CAPITALS.findall(text), len(_NEGATION.findall(text))]


_VERSION = 2
"""It grows with every change of what keys mean or of how answers are stored."""
_SAME_FOR_ALL = 0


class AnswerScope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose answers these are, and what gives them. Nothing is ever shared between two that differ."""

    holder: str
    """The digest of the API key; "" for everybody on a server without keys."""
    model: str
    """The digest of the model's file."""
    kv_type: str
    """The type of its KV cells: coarser ones give other answers."""
    adapter: str | None
    """What tells its version from all others."""
    version: str
    """The server's."""


class LastTurn(msgspec.Struct, frozen=True):
    """The last user turn of a conversation."""

    text: str
    around: tuple[int, ...]
    """The tokens of the prompt with something else in its place: equal where all other turns are equal, and
    what the template makes of them."""


class AnswerKey(msgspec.Struct, frozen=True, kw_only=True):
    asker: AnswerScope
    requests: tuple[GenerationRequest, ...]
    is_repeatable: bool
    """Whether the same question gets the same answer: sampling is greedy, or its seed was given."""
    asked_tokens: int
    """The limit of output tokens that was asked for, for all requests together; 0: none."""
    turn: LastTurn | None = None
    """None: it is no conversation, or such ones are not compared."""


def exact_key(question: AnswerKey) -> str | None:
    """None: its answer is a new one each time."""
    if not question.is_repeatable:
        return None
    return _digest("exact", question.asker, [_deciding(request) for request in question.requests])


def group_key(question: AnswerKey, embedder: str) -> str | None:
    """Equal for questions that differ by their last user turn alone, and there by words that vectors tell
    apart. `embedder`: what compares the turns.

    None: it has none.
    """
    if question.turn is None:
        return None
    alike = [_beside_turn(_deciding(request), question) for request in question.requests]
    turn = question.turn
    facts = [embedder, question.asked_tokens, turn.around, marks_of(turn.text), alike]
    return _digest("group", question.asker, facts)


def turn_key(group: str, turn: LastTurn) -> str:
    """For an answer that can only be found by its turn."""
    return hashlib.sha256(f"{group}\n{turn.text}".encode(errors="surrogatepass")).hexdigest()


def _deciding(request: GenerationRequest) -> GenerationRequest:
    """Without what does not change the answer. Fields that come later count until somebody says otherwise."""
    is_greedy = request.sampling.temperature == 0
    seed = _SAME_FOR_ALL if is_greedy else request.sampling.seed
    return msgspec.structs.replace(
        request,
        id="",
        priority=Priority.INTERACTIVE,
        client="",
        tells_progress=False,
        account="",
        group="",
        route="",
        pin=False,
        borders=(),
        media_items=(),  # the prompt has numbers made of their digests
        sampling=msgspec.structs.replace(request.sampling, seed=seed),
    )


def _beside_turn(request: GenerationRequest, question: AnswerKey) -> GenerationRequest:
    """Without the prompt, and without what follows from its length or is drawn for each request."""
    seed = request.sampling.seed if question.is_repeatable else _SAME_FOR_ALL
    sampling = msgspec.structs.replace(request.sampling, seed=seed)
    return msgspec.structs.replace(request, tokens=(), max_tokens=0, sampling=sampling)


def _digest(kind: str, asker: AnswerScope, facts: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode([_VERSION, kind, asker, facts])).hexdigest()


_VECTOR_NUMBER = np.dtype("<f4")


class SimilarTurn(NamedTuple):
    key: str
    similarity: float
    """The cosine."""


def direction(numbers: Sequence[float] | np.typing.NDArray[np.float32]) -> bytes | None:
    """A vector of length 1 as bytes; None for one that points nowhere."""
    vector = np.asarray(numbers, _VECTOR_NUMBER)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0.0:
        return None
    return (vector / length).astype(_VECTOR_NUMBER).tobytes()


def nearest(rows: Sequence[tuple[str, bytes]], vector: bytes, *, at_least: float) -> list[SimilarTurn]:
    """Those that are as similar as that, the most similar first. Rows of another length are none."""
    known = [(key, row) for key, row in rows if len(row) == len(vector)]
    if not known:
        return []
    table = np.frombuffer(b"".join(row for _, row in known), _VECTOR_NUMBER).reshape(len(known), -1)
    cosines = table @ np.frombuffer(vector, _VECTOR_NUMBER)
    order = np.argsort(-cosines, kind="stable")
    best = [SimilarTurn(known[index][0], float(cosines[index])) for index in order]
    return [near for near in best if near.similarity >= at_least]


GROUP_LIMIT = 2000
"""So many turns are compared with a new one at most."""
FEW = 8
"""So many similar turns are told of at most."""


class StoreFailed(Exception):
    """The store could not do it. The message names the kind of failure, and no address or password."""


class StoreBounds(NamedTuple):
    ttl_s: float
    """After so long an answer is forgotten, however often it was told."""
    max_bytes: int
    """What was told longest ago goes first."""


class AnswerEntry(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    answer: bytes
    group: str | None = None
    vector: bytes | None = None
    """The turn, of length 1; None: it can only be found by its key."""

    @property
    def num_bytes(self) -> int:
        return len(self.key) + len(self.answer) + len(self.vector or b"") + _OVERHEAD_BYTES


class StoreSize(NamedTuple):
    entries: int
    num_bytes: int


class AnswerStore(Protocol):
    """All methods raise StoreFailed. One that is cancelled may have done its work or not."""

    async def get(self, key: str) -> bytes | None:
        """The answer; None: there is none (any more). To be told makes it recently used."""

    async def near(self, group: str, vector: bytes, *, at_least: float) -> Sequence[SimilarTurn]:
        """Turns of the group that are as similar as that, the most similar first: a few of them at most."""

    async def put(self, entry: AnswerEntry) -> StoreSize:
        """In place of what is kept under its key. Returns what there is then."""

    async def forget(self, key: str, group: str | None) -> None:
        """`group`: where it was found, if it was."""

    async def clear(self) -> None: ...

    async def size(self) -> StoreSize:
        """Expired answers may still be counted."""

    async def close(self) -> None: ...


_OVERHEAD_BYTES = 200
"""Rows, keys and indices of an entry take about so much."""
