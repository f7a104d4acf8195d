"""Answers in the store that `--answer-cache` names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from openai_cpu_server.answers.redis import SCHEMES, RedisAnswers
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import (
    AnswerEntry,
    AnswerKey,
    AnswerStore,
    SimilarTurn,
    StoreBounds,
    StoreFailed,
    StoreSize,
    exact_key,
    group_key,
    turn_key,
)
from openai_cpu_server.config.folders import expanded_path
from openai_cpu_server.contract.figures import NO_WORK
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.errors import AnswersUnavailable, StartupError
from openai_cpu_server.storage.breaker import PAUSE_S, CircuitBreaker, NotAnswering

_events = msgspec.msgpack.Decoder(list[tuple[int, TokenEvent]])


class CorruptAnswer(Exception):
    """Stored bytes that do not answer this question."""


def is_good(finish: Finish, *, output_limit: int) -> bool:
    """Return True if the model or the limit that the client set ended the answer."""
    is_full = finish.reason is FinishReason.LENGTH and output_limit > 0 and not finish.is_loop
    return finish.reason is FinishReason.STOP or is_full


def packed_answer(events: Sequence[TokenEvent], requests: Sequence[GenerationRequest]) -> bytes:
    indices = {request.id: index for index, request in enumerate(requests)}
    numbered = [(indices[event.id], msgspec.structs.replace(event, id="")) for event in events]
    return msgspec.msgpack.encode(numbered)


def unpacked_answer(answer: bytes, requests: Sequence[GenerationRequest]) -> list[TokenEvent]:
    """Decode stored events for these requests, with no work in their figures. Raises CorruptAnswer."""
    try:
        numbered = _events.decode(answer)
    except msgspec.MsgspecError:
        raise CorruptAnswer from None
    events: list[TokenEvent] = []
    ended: set[int] = set()
    for index, event in numbered:
        if not 0 <= index < len(requests) or index in ended:
            raise CorruptAnswer
        finish = event.finish
        if finish is not None:
            if not finish.is_good:
                raise CorruptAnswer
            ended.add(index)
            work = NO_WORK | {"cached_tokens": len(requests[index].tokens)}
            finish = msgspec.structs.replace(finish, **work)
        events.append(msgspec.structs.replace(event, id=requests[index].id, finish=finish))
    if len(ended) != len(requests):
        raise CorruptAnswer
    return events


_ANSWER_S = 1.0
"""Timeout of the store; after it the answer is computed."""
_CLEAR_S = 60.0
_LARGEST_SHARE = 8
"""Fraction (1/8) of the store above which an answer would evict many others, and is not kept."""
_SMALL_BYTES = 16 * 1024
"""Size, some 250 tokens, below which a thread costs as much as decoding."""
_MOST_KEEPING = 64
"""Waiting writes; further answers are not kept."""


class AnswerObserver(Protocol):
    def answer_stored(self) -> None: ...

    def answers_held(self, entries: int, num_bytes: int) -> None: ...


class TurnComparison(NamedTuple):
    embedder: str
    least: float
    vector: Callable[[str], Awaitable[bytes | None]]
    """Embeds a turn as `direction` does; None if not possible, or not for the whole turn."""


class AnswerPlace(NamedTuple):
    key: str
    group: str | None = None
    vector: bytes | None = None


class FoundAnswer(NamedTuple):
    events: Sequence[TokenEvent]
    similarity: float | None
    """Cosine of the turns, or None for the same question."""


class AnswerCache:
    def __init__(
        self, store: AnswerStore, bounds: StoreBounds, watcher: AnswerObserver, *, answer_s: float = _ANSWER_S
    ) -> None:
        self._store = store
        self._largest_bytes = bounds.max_bytes // _LARGEST_SHARE
        self._watcher = watcher
        self._breaker = CircuitBreaker(
            fails="the cache of answers fails (%s): all answers are computed until it is back",
            back="the cache of answers is back",
            failure=lambda error: str(error) if isinstance(error, StoreFailed) else None,
            answer_s=answer_s,
            pause_s=PAUSE_S,
        )
        self._keeping: set[asyncio.Task[None]] = set()

    async def find(
        self, question: AnswerKey, comparing: TurnComparison | None
    ) -> FoundAnswer | AnswerPlace | None:
        """Return the answer, or the place for one. None if it could not be found again."""
        exact = exact_key(question)
        if exact is not None and (events := await self._stored(exact, question)) is not None:
            return FoundAnswer(events, None)  # one that is corrupt will be replaced by the new answer
        by_key_only = None if exact is None else AnswerPlace(exact)
        group = group_key(question, comparing.embedder) if comparing is not None else None
        if comparing is None or group is None or question.turn is None:
            return by_key_only
        vector = await comparing.vector(question.turn.text)
        if vector is None:
            return by_key_only
        place = AnswerPlace(exact or turn_key(group, question.turn), group, vector)
        return await self._most_similar(question, place, comparing.least) or place

    def keep(self, question: AnswerKey, place: AnswerPlace, events: Sequence[TokenEvent]) -> None:
        if len(self._keeping) >= _MOST_KEEPING:
            return
        task = asyncio.create_task(self._keep(question, place, events))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def clear(self) -> None:
        """Wait for pending writes, then remove all answers. Raises AnswersUnavailable."""
        await self._settle()
        try:
            await self._breaker.insist(self._store.clear, _CLEAR_S)
        except NotAnswering:
            raise AnswersUnavailable from None
        await self.measure()

    async def measure(self) -> StoreSize | None:
        size = await self._breaker.attempt(self._store.size)
        if size is not None:
            self._watcher.answers_held(*size)
        return size

    async def close(self) -> None:
        await self._settle()
        with contextlib.suppress(StoreFailed, asyncio.TimeoutError):
            await asyncio.wait_for(self._store.close(), _ANSWER_S)

    async def _settle(self) -> None:
        if self._keeping:
            await asyncio.wait(self._keeping)

    async def _stored(self, key: str, question: AnswerKey) -> Sequence[TokenEvent] | None:
        answer = await self._breaker.attempt(partial(self._store.get, key))
        if answer is None:
            return None
        try:
            if len(answer) <= _SMALL_BYTES:
                return unpacked_answer(answer, question.requests)
            return await asyncio.to_thread(unpacked_answer, answer, question.requests)
        except CorruptAnswer:
            return None

    async def _most_similar(
        self, question: AnswerKey, place: AnswerPlace, least: float
    ) -> FoundAnswer | None:
        assert place.group is not None
        assert place.vector is not None
        ask = partial(self._store.near, place.group, place.vector, at_least=least)
        near: Sequence[SimilarTurn] = await self._breaker.attempt(ask) or ()
        for key, similarity in near:
            if (events := await self._stored(key, question)) is not None:
                return FoundAnswer(events, similarity)
            await self._breaker.attempt(partial(self._store.forget, key, place.group))
        return None

    async def _keep(self, question: AnswerKey, place: AnswerPlace, events: Sequence[TokenEvent]) -> None:
        answer = await asyncio.to_thread(packed_answer, events, question.requests)
        entry = AnswerEntry(key=place.key, answer=answer, group=place.group, vector=place.vector)
        if entry.num_bytes > self._largest_bytes:
            return
        size = await self._breaker.attempt(partial(self._store.put, entry))
        if size is not None:
            self._watcher.answer_stored()
            self._watcher.answers_held(*size)


def open_answers(where: str, bounds: StoreBounds, *, default: Path) -> AnswerStore:
    """`where`: on, memory, a path, or redis://...; `default`: the file for `on`. Raises StartupError."""
    if where.startswith(SCHEMES):
        return RedisAnswers.open(where, bounds)
    if "://" in where:
        raise StartupError("--answer-cache: expected on, memory, a PATH, or redis://HOST:PORT")
    if where == "memory":
        return SqliteAnswers.open(None, bounds)
    return SqliteAnswers.open(default if where == "on" else expanded_path(where), bounds)
