"""Finds answers that have been given before, and keeps new ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from openai_cpu_server.answers.question import Question, exact_key, group_key, turn_key
from openai_cpu_server.answers.similarity import Near
from openai_cpu_server.answers.store import AnswerStore, Bounds, Entry, Size, StoreFailed
from openai_cpu_server.answers.stored import Corrupt, packed, unpacked
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.errors import AnswersUnavailable
from openai_cpu_server.storage.breaker import PAUSE_S, CircuitBreaker, NotAnswering

_ANSWER_S = 1.0
"""The store must answer in this time; else the answer is computed."""
_CLEAR_S = 60.0
"""Emptying a large store takes longer, and somebody waits for just that."""
_LARGEST_SHARE = 8
"""An answer that is larger than this part of the store is not kept: it would push out many others."""
_SMALL_BYTES = 16 * 1024
"""An answer of some 250 tokens is read in a fraction of a millisecond; another thread would cost as much."""
_MOST_KEEPING = 64
"""So many answers wait to be written at most; more are not kept."""


class Watcher(Protocol):
    def answer_kept(self) -> None: ...

    def answers_held(self, entries: int, num_bytes: int) -> None: ...


class Comparing(NamedTuple):
    """How turns are compared."""

    embedder: str
    """What tells the model that embeds them from all others."""
    least: float
    """The cosine of turns that are taken for the same."""
    vector: Callable[[str], Awaitable[bytes | None]]
    """Embeds a turn, as `similarity.direction` has it; None: that is not possible now, or not as a whole."""


class Place(NamedTuple):
    """Where the answer to a question would be."""

    key: str
    group: str | None = None
    vector: bytes | None = None
    """None: it can only be found by its key."""


class Found(NamedTuple):
    events: Sequence[TokenEvent]
    similarity: float | None
    """None: it was asked the very same."""


class AnswerCache:
    """All methods belong to one event loop's thread."""

    def __init__(self, store: AnswerStore, bounds: Bounds, watcher: Watcher) -> None:
        self._store = store
        self._largest_bytes = bounds.max_bytes // _LARGEST_SHARE
        self._watcher = watcher
        self._breaker = CircuitBreaker(
            fails="the cache of answers fails (%s): all is computed until it is back",
            back="the cache of answers is back",
            failure=_failure,
            answer_s=_ANSWER_S,
            pause_s=PAUSE_S,
        )
        self._keeping: set[asyncio.Task[None]] = set()

    async def find(self, question: Question, comparing: Comparing | None) -> Found | Place | None:
        """The answer, else where to keep a new one. None: there is no such place, for it could not be found
        again."""
        exact = exact_key(question)
        if exact is not None and (events := await self._told(exact, question)) is not None:
            return Found(events, None)  # one that is corrupt will be replaced by the new answer
        group = group_key(question, comparing.embedder) if comparing is not None else None
        if comparing is None or group is None or question.turn is None:
            return _by_key_only(exact)
        vector = await comparing.vector(question.turn.text)
        if vector is None:
            return _by_key_only(exact)
        place = Place(exact or turn_key(group, question.turn), group, vector)
        return await self._like(question, place, comparing.least) or place

    def keep(self, question: Question, place: Place, events: Sequence[TokenEvent]) -> None:
        """Writes it while the server goes on."""
        if len(self._keeping) >= _MOST_KEEPING:
            return
        task = asyncio.create_task(self._keep(question, place, events))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def clear(self) -> None:
        """Waits for answers that are being written, and forgets them too. Raises AnswersUnavailable."""
        await self._settle()
        try:
            await self._breaker.insist(self._store.clear, _CLEAR_S)
        except NotAnswering:
            raise AnswersUnavailable from None
        await self.measure()

    async def measure(self) -> Size | None:
        """What is held; None: the store fails."""
        size = await self._breaker.attempt(self._store.size)
        if size is not None:
            self._watcher.answers_held(*size)
        return size

    async def close(self) -> None:
        """A store that fails is closed, too."""
        await self._settle()
        with contextlib.suppress(StoreFailed, asyncio.TimeoutError):
            await asyncio.wait_for(self._store.close(), _ANSWER_S)

    async def _settle(self) -> None:
        if self._keeping:
            await asyncio.wait(self._keeping)

    async def _told(self, key: str, question: Question) -> Sequence[TokenEvent] | None:
        answer = await self._breaker.attempt(partial(self._store.get, key))
        if answer is None:
            return None
        try:
            if len(answer) <= _SMALL_BYTES:
                return unpacked(answer, question.requests)
            return await asyncio.to_thread(unpacked, answer, question.requests)
        except Corrupt:
            return None

    async def _like(self, question: Question, place: Place, least: float) -> Found | None:
        """The answer to the turn that is most similar. One that has expired, or is corrupt, gives way to the
        next."""
        assert place.group is not None
        assert place.vector is not None
        ask = partial(self._store.near, place.group, place.vector, at_least=least)
        near: Sequence[Near] = await self._breaker.attempt(ask) or ()
        for key, similarity in near:
            if (events := await self._told(key, question)) is not None:
                return Found(events, similarity)
            await self._breaker.attempt(partial(self._store.forget, key, place.group))
        return None

    async def _keep(self, question: Question, place: Place, events: Sequence[TokenEvent]) -> None:
        answer = await asyncio.to_thread(packed, events, question.requests)
        entry = Entry(key=place.key, answer=answer, group=place.group, vector=place.vector)
        if entry.num_bytes > self._largest_bytes:
            return
        size = await self._breaker.attempt(partial(self._store.put, entry))
        if size is not None:
            self._watcher.answer_kept()
            self._watcher.answers_held(*size)


def _failure(error: Exception) -> str | None:
    return str(error) if isinstance(error, StoreFailed) else None


def _by_key_only(exact: str | None) -> Place | None:
    return None if exact is None else Place(exact)
