"""Preparation of constraints beside the loop and the reader, so that neither waits for a compiler.

Adapters are checked here, too, because their files may be large. Media are measured in another thread,
because libmtmd computes the spectrum of a sound for that: half a second of the cores for a minute.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from queue import PriorityQueue, SimpleQueue

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.media import MeasuredMedia, MediaSize
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.engine.base import CheckedAdapter, PreparedRequest, Work

Request = (
    messages.Submit
    | messages.CancelRequest
    | messages.ClearCache
    | messages.LoadAdapter
    | messages.UnloadAdapter
    | messages.MeasureMedia
    | messages.ShowSteps
    | messages.HideSteps
)
"""Commands that are taken once the engine is ready."""
Prepared = messages.Submit | messages.LoadAdapter
_END = (-2, 0, None)
"""Sorts before all requests."""
_BEHIND_REQUESTS = max(Priority) + 1
_MEASURING_NICENESS = 10
"""Gives the thread a tenth of the CPU time of a step's thread beside it."""


@dataclass(eq=False)
class Preparation:
    """Filter of commands: requests with a constraint pass when that is prepared, adapters when their files
    are checked, other commands at once.

    One thread prepares, interactive requests first. It announces each request before it begins, because
    native code may kill the process there. Another thread measures media. Leaving the context waits until the
    threads have ended.
    """

    prepare: Callable[[messages.Submit], PreparedRequest]
    check: Callable[[Adapter], CheckedAdapter]
    _: KW_ONLY
    measure: Callable[[MediaSize], MeasuredMedia]
    announce: Callable[[messages.Handling | messages.MediaMeasured], None]
    hand_on: Callable[[Work], None]
    """Called in several threads, like `announce`."""
    _queue: PriorityQueue[tuple[int, int, Prepared | None]] = field(default_factory=PriorityQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cancelled: dict[str, messages.CancelRequest | None] = field(default_factory=dict)
    """Requests in preparation, and how they were cancelled in the meantime."""
    _sizes: SimpleQueue[MediaSize | None] = field(default_factory=SimpleQueue[MediaSize | None])
    """Sizes to be measured; None ends the thread."""

    def __post_init__(self) -> None:
        self._numbers = count(1)
        self._threads = [
            threading.Thread(target=self._work, name="prepare", daemon=True),
            threading.Thread(target=self._measure_all, name="measure", daemon=True),
        ]

    def __enter__(self) -> Preparation:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._queue.put(_END)
        self._sizes.put(None)
        for thread in self._threads:
            thread.join()

    def take(self, command: Request) -> None:
        match command:
            case messages.Submit(request=GenerationRequest() as request) if request.constraint is not None:
                with self._lock:
                    self._cancelled[request.id] = None
                self._queue.put((request.priority, next(self._numbers), command))
            case messages.LoadAdapter():
                self._queue.put((_BEHIND_REQUESTS, next(self._numbers), command))
            case messages.MeasureMedia(sizes=sizes):
                for size in sizes:
                    self._sizes.put(size)
            case messages.CancelRequest() if self._is_put_off(command):
                pass
            case _:
                self.hand_on(command)

    def _is_put_off(self, cancel: messages.CancelRequest) -> bool:
        """A request in preparation is cancelled directly after it has passed."""
        with self._lock:
            if cancel.id not in self._cancelled:
                return False
            self._cancelled[cancel.id] = cancel
            return True

    def _work(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client is gone
            while (command := self._queue.get()[2]) is not None:
                match command:
                    case messages.LoadAdapter(adapter=adapter):
                        self.hand_on(self.check(adapter))
                    case messages.Submit(request=request):
                        prepared = self._prepared(command)
                        with self._lock:
                            self.hand_on(prepared)
                            if (cancel := self._cancelled.pop(request.id)) is not None:
                                self.hand_on(cancel)

    def _measure_all(self) -> None:
        with contextlib.suppress(OSError):  # threads that are begun for it inherit that
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _MEASURING_NICENESS)
        with contextlib.suppress(ConnectionError):
            while (size := self._sizes.get()) is not None:
                self.announce(messages.MediaMeasured((self._measured(size),)))

    def _measured(self, size: MediaSize) -> MeasuredMedia:
        try:
            with contained():
                return self.measure(size)
        except RequestFailed as error:
            return MeasuredMedia(size, why_not=str(error))

    def _prepared(self, submit: messages.Submit) -> PreparedRequest:
        cancel = self._cancelled[submit.request.id]
        if cancel is not None and cancel.reason is messages.FinishReason.CANCELLED:
            return PreparedRequest(submit, failure=RequestFailed("It was cancelled before it began."))
        self.announce(messages.Handling(id=submit.request.id))
        prepared = self.prepare(submit)
        self.announce(messages.Handling(id=None))
        return prepared
