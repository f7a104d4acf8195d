"""Common part of engine cores."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.messages import Scheduling
from openai_cpu_server.contract.model_info import Adapter, ModelInfo, ThreadControl
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import CacheFileLimit
from openai_cpu_server.engine.cores import CoreMonitor

_NEVER = float("-inf")
_QUEUE_NEWS_S = 0.5
_SHORT_MS = 128.0
"""Steps up to this duration are announced without it, because every engine is allowed more time than that."""


class PreparedRequest(NamedTuple):
    submit: messages.Submit
    beginning: tuple[int, ...] = ()
    """Output that the constraint forces before the first sample, computed with the prompt."""
    failure: RequestFailed | None = None


class CheckedAdapter(NamedTuple):
    adapter: Adapter
    why_not: str | None = None


EngineWork = (
    messages.Submit
    | PreparedRequest
    | messages.CancelRequest
    | messages.ClearCache
    | CheckedAdapter
    | messages.UnloadAdapter
    | messages.ShowSteps
    | messages.HideSteps
)
Planned = TypeVar("Planned")


_MEMORY_S = 2.0
_TRUST_S = 0.1
"""Steps with the predicted duration that are assumed, because a short step says little."""
_LATEST = 20.0


def scheduling_on(scheduling: Scheduling, info: ModelInfo) -> Scheduling:
    goes_on = info.placement is not None and info.placement.computes_in_one_go
    return scheduling.without_interruption() if goes_on else scheduling


class StepTimer:
    """Timer that discards no two steps in a row, so at most half of the work is wasted."""

    def __init__(
        self, clock: Callable[[], float], cpu_clock: Callable[[], float], *, preempt_threshold_s: float
    ) -> None:
        """`cpu_clock`: CPU seconds of all threads. No step that ends within the threshold is discarded."""
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._preempt_threshold_s = preempt_threshold_s
        self._interruptible_until = _NEVER
        """Read by the reader thread."""
        self._is_urged = False
        self._cpu_started_s = 0.0
        self._predicted_ms = 0.0
        self._ended_s = clock()
        self._recent_elapsed_s = self._recent_predicted_s = 0.0
        self.started_s = 0.0
        self.elapsed_ms = 0.0
        self.was_interrupted = False

    def urge(self) -> bool:
        """Note urgent work, in any thread; return True if the step may be discarded."""
        self._is_urged = True
        return self._clock() < self._interruptible_until

    def begin(self, predicted_ms: float, *, may_interrupt: bool) -> bool:
        """Return True if the step should be discarded."""
        self.started_s, self._cpu_started_s = self._clock(), self._cpu_clock()
        self._predicted_ms = predicted_ms
        if may_interrupt and not self.was_interrupted:
            self._interruptible_until = self.started_s + predicted_ms / 1000 - self._preempt_threshold_s
        return self._is_urged and self.started_s < self._interruptible_until

    def end(self, *, is_interrupted: bool) -> None:
        self._interruptible_until = _NEVER
        self._is_urged = False
        self.was_interrupted = is_interrupted
        now_s = self._clock()
        self.elapsed_ms = 1000 * (now_s - self.started_s)
        if not is_interrupted:
            fading = math.exp(-max(0.0, now_s - self._ended_s) / _MEMORY_S)
            self._recent_elapsed_s = fading * self._recent_elapsed_s + self.elapsed_ms / 1000
            self._recent_predicted_s = fading * self._recent_predicted_s + self._predicted_ms / 1000
            self._ended_s = now_s

    @property
    def lateness(self) -> float:
        """Recent factor of the predicted time, because the cost model learns slowly."""
        factor = (self._recent_elapsed_s + _TRUST_S) / (self._recent_predicted_s + _TRUST_S)
        return min(max(factor, 1.0), _LATEST)

    def cpu_ms(self) -> float:
        """CPU time of the last step; 0 for a discarded one."""
        return 0.0 if self.was_interrupted else 1000 * (self._cpu_clock() - self._cpu_started_s)


class Core(ABC, Generic[Planned]):
    """Core, whose methods belong to the loop's thread unless they say otherwise."""

    def __init__(
        self, threads: ThreadControl, *, preempt_threshold_ms: float, clock: Callable[[], float]
    ) -> None:
        self._timer = StepTimer(clock, time.process_time, preempt_threshold_s=preempt_threshold_ms / 1000)
        self._cores = CoreMonitor(threads, clock)
        self._clock = clock
        self._events: list[messages.TokenEvent] = []
        self._embedded: list[Embedded] = []
        self._announced = messages.StepStarted(ids=())
        self._queue_sent_s = _NEVER

    # -- for the loop ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_work(self) -> bool: ...

    @property
    @abstractmethod
    def work(self) -> Priority | None:
        """Highest priority to compute, or None."""

    @property
    def is_guessing(self) -> bool:
        """True if the cost of steps could be measured."""
        return False

    def calibrate(self, is_wanted: Callable[[], bool]) -> None:
        """Measure the cost of steps until it is known or `is_wanted`. Allowed only without work."""
        raise AssertionError("there is nothing to measure")

    @abstractmethod
    def prepare(self, submit: messages.Submit) -> PreparedRequest:
        """Prepare a request with a constraint, in any thread."""

    @abstractmethod
    def check_adapter(self, adapter: Adapter) -> CheckedAdapter:
        """Check an adapter's file, in any thread."""

    @abstractmethod
    def load_adapter(self, checked: CheckedAdapter) -> Iterator[messages.AdapterNews]:
        """Yield events as they happen."""

    def handle(self, command: EngineWork) -> None:
        """Execute a command. An error fails only its request."""
        try:
            with contained():
                self._handle(command)
        except RequestFailed as error:
            self._abandon(command, error)

    def is_worth_interrupting(self, command: EngineWork | messages.ShortenCpuToken) -> bool:
        """Return True if the command discards the running step, in any thread."""
        if isinstance(command, messages.ShortenCpuToken):
            is_urgent = command.interrupts
        else:
            submit = submit_of(command)
            is_urgent = submit is not None and submit.request.priority is Priority.INTERACTIVE
        return is_urgent and self._timer.urge()

    def flush(self, sharing: messages.Sharing) -> Iterator[messages.StepDone | messages.QueueState]:
        """Yield events while another engine computes."""
        if self._has_events:
            yield self._done(None, None)
        yield from self._queue_news(sharing)

    def step(
        self, sharing: messages.Sharing = messages.ALONE
    ) -> Iterator[messages.StepStarted | messages.StepDone | messages.QueueState]:
        try:
            planned = self._plan(sharing)
        except BaseException:  # any of the requests may be to blame
            yield messages.StepStarted(ids=self._all_ids)
            raise
        members = self._members(planned)
        if members != self._announced:
            self._announced = members
            yield members
        figures = self._compute(planned)
        yield self._done(planned, figures)
        yield from self._queue_news(sharing)

    @abstractmethod
    def save_cache(self, path: str, limit: CacheFileLimit | None = None) -> None:
        """End all requests and write the most recently used prefixes. Raises OSError."""

    # -- what kinds of cores do in their own way ---------------------------------------------------------

    @property
    @abstractmethod
    def _all_ids(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _handle(self, command: EngineWork) -> None: ...

    @abstractmethod
    def _abandon(self, command: EngineWork, error: RequestFailed) -> None: ...

    @abstractmethod
    def _plan(self, sharing: messages.Sharing) -> Planned: ...

    @abstractmethod
    def _members(self, planned: Planned) -> messages.StepStarted: ...

    @abstractmethod
    def _compute(self, planned: Planned) -> messages.StepFigures | None: ...

    @abstractmethod
    def _done(self, planned: Planned | None, figures: messages.StepFigures | None) -> messages.StepDone: ...

    @abstractmethod
    def _queue_state(self, slowdown: float) -> messages.QueueState | None: ...

    # -- news --------------------------------------------------------------------------------------------

    @property
    def _has_events(self) -> bool:
        return bool(self._events or self._embedded)

    def _take_events(self) -> tuple[messages.TokenEvent, ...]:
        events = tuple(self._events)
        self._events.clear()
        return events

    def _queue_news(self, sharing: messages.Sharing) -> Iterator[messages.QueueState]:
        if self._clock() - self._queue_sent_s < _QUEUE_NEWS_S:
            return
        state = self._queue_state(sharing.slowdown * self._timer.lateness)
        if state is not None:
            self._queue_sent_s = self._clock()
            yield state


AnyCore = Core[Any]


def step_of(ids: Iterable[str], predicted_ms: float) -> messages.StepStarted:
    """Return the announcement of a step, whose time is a power of two, so that it is seldom news."""
    expected_ms = 2.0 ** math.ceil(math.log2(predicted_ms)) if predicted_ms > _SHORT_MS else 0.0
    return messages.StepStarted(ids=tuple(ids), expected_ms=expected_ms)


def submit_of(command: EngineWork) -> messages.Submit | None:
    if isinstance(command, PreparedRequest):
        return command.submit
    return command if isinstance(command, messages.Submit) else None


def failure(
    request_id: str, why: str, output_tokens: int, *, is_own_fault: bool = False
) -> messages.TokenEvent:
    finish = messages.Finish(
        reason=messages.FinishReason.ERROR, output_tokens=output_tokens, error=why, is_own_fault=is_own_fault
    )
    return messages.TokenEvent(id=request_id, finish=finish)


def shared_ms(parts: Iterable[tuple[str, int]], cpu_ms: float) -> dict[str, float]:
    """Divide the step's time among clients by their tokens. `parts`: clients, also repeated, with tokens."""
    tokens: dict[str, int] = {}
    for client, num_tokens in parts:
        tokens[client] = tokens.get(client, 0) + num_tokens
    total = sum(tokens.values())
    return {client: cpu_ms * count / total for client, count in tokens.items()} if total else {}
