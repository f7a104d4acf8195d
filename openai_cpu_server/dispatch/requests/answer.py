"""What one API call waits for, whatever it asked: when it came, who ends it, and what it fails with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Generic, TypeVar, Union

from openai_cpu_server.contract.messages import ModelLoading, Place
from openai_cpu_server.errors import ServerError

Item = TypeVar("Item")
Arrived = tuple[Union[Item, Place, ModelLoading, ServerError], float]
"""What the engine told, and when it came in."""


class Clocking:
    """Notes when things first happened to an API call; times in seconds on the clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started: float | None = None
        self._first_token: float | None = None
        self._ended: float | None = None
        self.submitted = clock()

    def start(self) -> None:
        if self._started is None:
            self._started = self._clock()

    def first_token(self) -> None:
        if self._first_token is None:
            self._first_token = self._clock()

    def end(self) -> None:
        self._ended = self._clock()

    @property
    def ended(self) -> float:
        """Now, while it has not ended; so for the others, while they have not been."""
        return self._clock() if self._ended is None else self._ended

    @property
    def started(self) -> float:
        return self.ended if self._started is None else self._started

    @property
    def first(self) -> float:
        return self.ended if self._first_token is None else self._first_token


class Answer(Generic[Item]):
    """What the engine tells of one API call's requests. Leaving its context cancels what still runs."""

    def __init__(
        self, request_ids: Iterable[str], *, cancel: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self.arrived_s = clock()
        """When what was taken last came in, on `clock`."""
        self._unfinished = set(request_ids)
        self._cancel = cancel
        self._clock = clock
        self._clocking = Clocking(clock)
        self._queue: asyncio.Queue[Arrived[Item]] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for request_id in self._unfinished:
            self._cancel(request_id)
        self._stop_timer()

    def fail_in(self, seconds: float, error: ServerError) -> None:
        """End it with this error unless it has ended by then."""
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._end, error)

    # -- called by `Replay` ----------------------------------------------------------------------------

    def start(self) -> None:
        self._clocking.start()

    def wait_at(self, place: Place) -> None:
        self._put(place)

    def wait_for_model(self, loading: ModelLoading) -> None:
        self._put(loading)

    def fail(self, request_id: str, error: ServerError) -> None:
        self._leave(request_id)
        self._put(error)

    # -- for the kinds of answers ------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        """It has ended, and all was taken."""
        return not self._unfinished and self._queue.empty()

    async def _take(self) -> Union[Item, Place, ModelLoading]:
        """The next of what came in. Raises what the call failed with."""
        item, self.arrived_s = await self._queue.get()
        if isinstance(item, ServerError):
            raise item
        return item

    def _put(self, item: Union[Item, Place, ModelLoading, ServerError]) -> None:
        self._queue.put_nowait((item, self._clock()))

    def _end(self, error: ServerError) -> None:
        for request_id in list(self._unfinished):
            self._cancel(request_id)
            self.fail(request_id, error)

    def _leave(self, request_id: str) -> None:
        self._unfinished.discard(request_id)
        if not self._unfinished:
            self._clocking.end()
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
