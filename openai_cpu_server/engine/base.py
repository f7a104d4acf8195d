"""What an engine's core is, whatever its model does: it takes commands, computes steps, and tells of them.

The loop drives one `Core`: `EngineCore` for models that generate, `EmbedCore` for those that embed.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.messages import (
    ALONE,
    AdapterNews,
    CancelRequest,
    ClearCache,
    Finish,
    FinishReason,
    HideSteps,
    QueueState,
    Sharing,
    ShortenTurn,
    ShowSteps,
    StepDone,
    StepFigures,
    StepStarted,
    Submit,
    TokenEvent,
    UnloadAdapter,
)
from openai_cpu_server.contract.model_info import Adapter, ModelInfo
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.scheduling import Scheduling
from openai_cpu_server.contract.step import CacheFileLimit
from openai_cpu_server.engine.cores import CoreWatch

NEVER = float("-inf")
_QUEUE_NEWS_S = 0.5
_SHORT_MS = 128.0
"""Steps up to this are not told how long they may take: every engine is given more time than that."""


class PreparedRequest(NamedTuple):
    """A request that can be accepted."""

    submit: Submit
    beginning: tuple[int, ...]
    """Output that its constraint forces before anything is sampled, to be computed with the prompt."""


class RefusedRequest(NamedTuple):
    """A request that cannot be accepted."""

    submit: Submit
    why: str
    is_own_fault: bool = False
    """Its grammar is to blame."""


class CheckedAdapter(NamedTuple):
    """An adapter whose file was looked at."""

    adapter: Adapter
    why_not: str | None = None
    """Why it cannot be loaded."""


Work = (
    Submit
    | PreparedRequest
    | RefusedRequest
    | CancelRequest
    | ClearCache
    | CheckedAdapter
    | UnloadAdapter
    | ShowSteps
    | HideSteps
)
"""Commands that a core handles."""
Planned = TypeVar("Planned")
"""A step that is to be computed."""


_MEMORY_S = 2.0
"""What was seen of steps counts for about so long."""
_TRUST_S = 0.1
"""So many seconds of steps that took what was predicted are taken for granted: a short one says little."""
_LATEST = 20.0


class _Lateness:
    """How many times as long as predicted steps take lately; 1 where they are faster. The cost model learns
    of a busy machine step by step, and nothing where cores are lost for the moment; who waits is told at
    once."""

    def __init__(self, now_s: float) -> None:
        self._noted_s = now_s
        self._elapsed_s = self._predicted_s = 0.0

    def note(self, now_s: float, elapsed_s: float, predicted_s: float) -> None:
        kept = math.exp(-max(0.0, now_s - self._noted_s) / _MEMORY_S)
        self._elapsed_s = kept * self._elapsed_s + elapsed_s
        self._predicted_s = kept * self._predicted_s + predicted_s
        self._noted_s = now_s

    @property
    def factor(self) -> float:
        factor = (self._elapsed_s + _TRUST_S) / (self._predicted_s + _TRUST_S)
        return min(max(factor, 1.0), _LATEST)


def scheduling_on(asked: Scheduling, info: ModelInfo) -> Scheduling:
    """What a device does not let be interrupted is kept short."""
    goes_on = info.placement is not None and info.placement.computes_in_one_go
    return asked.without_interruption() if goes_on else asked


class StepTimer:
    """Times one step after the other, and says whether the running one may be thrown away.

    Never are two in a row, so at most half of the work is wasted.
    """

    def __init__(
        self, clock: Callable[[], float], cpu_clock: Callable[[], float], *, preempt_threshold_s: float
    ) -> None:
        """`cpu_clock`: CPU seconds of all threads. A step that ends within the threshold is never thrown
        away."""
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._preempt_threshold_s = preempt_threshold_s
        self._interruptible_until = NEVER
        """Read by the reader thread while a step runs."""
        self._cpu_started_s = 0.0
        self._predicted_ms = 0.0
        self._lateness = _Lateness(clock())
        self.started_s = 0.0
        self.elapsed_ms = 0.0
        self.was_interrupted = False
        """The last step was thrown away."""

    @property
    def is_interruptible(self) -> bool:
        """Any thread."""
        return self._clock() < self._interruptible_until

    def begin(self, predicted_ms: float, *, may_interrupt: bool) -> None:
        self.started_s, self._cpu_started_s = self._clock(), self._cpu_clock()
        self._predicted_ms = predicted_ms
        if may_interrupt and not self.was_interrupted:
            self._interruptible_until = self.started_s + predicted_ms / 1000 - self._preempt_threshold_s

    def end(self, *, is_interrupted: bool) -> None:
        self._interruptible_until = NEVER
        self.was_interrupted = is_interrupted
        now_s = self._clock()
        self.elapsed_ms = 1000 * (now_s - self.started_s)
        if not is_interrupted:
            self._lateness.note(now_s, self.elapsed_ms / 1000, self._predicted_ms / 1000)

    @property
    def lateness(self) -> float:
        """How many times as long as predicted steps take lately, because others use the cores."""
        return self._lateness.factor

    def cpu_ms(self) -> float:
        """What the last step has cost up to now; a step that was thrown away is nobody's."""
        return 0.0 if self.was_interrupted else 1000 * (self._cpu_clock() - self._cpu_started_s)


class Core(ABC, Generic[Planned]):
    """Takes commands and computes steps. Every submitted request gets exactly one event that ends it.

    All methods are for the loop's thread, but those that say otherwise.
    """

    def __init__(self, timer: StepTimer, cores: CoreWatch, clock: Callable[[], float]) -> None:
        self._timer = timer
        self._cores = cores
        self._clock = clock
        self._events: list[TokenEvent] = []
        """Events of the step that is being built."""
        self._announced = StepStarted(ids=())
        self._queue_told_at = NEVER

    # -- for the loop ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """There is something to compute, or to tell."""

    @property
    @abstractmethod
    def work(self) -> Priority | None:
        """The best priority of what is to be computed; None: there is nothing."""

    @property
    def is_guessing(self) -> bool:
        """It guesses what steps cost, and could measure it."""
        return False

    def calibrate(self, is_wanted: Callable[[], bool]) -> None:
        """Measure what steps cost, until that is known or something is wanted. Only without work."""
        raise AssertionError("there is nothing to measure")

    @abstractmethod
    def prepare(self, submit: Submit) -> PreparedRequest | RefusedRequest:
        """Make a request ready that has a constraint. Any thread."""

    @abstractmethod
    def check_adapter(self, adapter: Adapter) -> CheckedAdapter:
        """Look at an adapter's file. Any thread."""

    @abstractmethod
    def load_adapter(self, checked: CheckedAdapter) -> Iterator[AdapterNews]:
        """Load an adapter; what happens is yielded when it happens. One that is loaded stays as it is."""

    def handle(self, command: Work) -> None:
        """Carry out a command. What goes wrong fails the request that it is about, and nothing else."""
        try:
            with contained():
                self._handle(command)
        except RequestFailed as error:
            self._abandon(command, error)

    def is_worth_interrupting(self, command: Work | ShortenTurn) -> bool:
        """Whether the running step should be thrown away for this command. Any thread."""
        return _is_urgent(command) and self._timer.is_interruptible

    def tell(self, sharing: Sharing) -> Iterator[StepDone | QueueState]:
        """While another engine computes: what needs no computing."""
        if self._has_events:
            yield self._done(None, None)
        yield from self._queue_news(sharing)

    def step(self, sharing: Sharing = ALONE) -> Iterator[StepStarted | StepDone | QueueState]:
        """Compute one step; what happens is yielded when it happens."""
        try:
            planned = self._plan(sharing)
        except BaseException:  # nobody knows with whom the planning could not cope: it may be any of them
            yield StepStarted(ids=self._everybody)
            raise
        yield from self._announce(self._members(planned))
        figures = self._compute(planned)
        yield self._done(planned, figures)
        yield from self._queue_news(sharing)

    @abstractmethod
    def save_cache(self, path: str, limit: CacheFileLimit | None = None) -> None:
        """End everything and write the prefix cache, if there is one, to a file; of a larger one what was
        used last. Raises OSError."""

    # -- what kinds of cores do in their own way -----------------------------------------------------------

    @property
    @abstractmethod
    def _has_events(self) -> bool:
        """There is something to tell that needs no computing."""

    @property
    @abstractmethod
    def _everybody(self) -> tuple[str, ...]:
        """The requests that have not ended."""

    @abstractmethod
    def _handle(self, command: Work) -> None: ...

    @abstractmethod
    def _abandon(self, command: Work, error: RequestFailed) -> None:
        """Nothing stays of the request, however far the command had come."""

    @abstractmethod
    def _plan(self, sharing: Sharing) -> Planned: ...

    @abstractmethod
    def _members(self, planned: Planned) -> StepStarted: ...

    @abstractmethod
    def _compute(self, planned: Planned) -> StepFigures | None:
        """None: there was nothing to compute."""

    @abstractmethod
    def _done(self, planned: Planned | None, figures: StepFigures | None) -> StepDone:
        """Take what is to be told; without a step: only what needed none."""

    @abstractmethod
    def _queue_state(self, slowdown: float) -> QueueState | None:
        """None: nobody waits."""

    def _take_events(self) -> tuple[TokenEvent, ...]:
        events = tuple(self._events)
        self._events.clear()
        return events

    # -- news --------------------------------------------------------------------------------------------

    def _announce(self, news: StepStarted) -> Iterator[StepStarted]:
        if news != self._announced:
            self._announced = news
            yield news

    def _queue_news(self, sharing: Sharing) -> Iterator[QueueState]:
        if self._clock() - self._queue_told_at < _QUEUE_NEWS_S:
            return
        state = self._queue_state(sharing.slowdown * self._timer.lateness)
        if state is not None:
            self._queue_told_at = self._clock()
            yield state


AnyCore = Core[Any]
"""Whatever its steps are made of."""


def step_of(ids: Iterable[str], predicted_ms: float) -> StepStarted:
    """Who is in a step, and how long it may take: rounded up to a power of two, so that a time that grows a
    little with every step is seldom news; 0 if it is short."""
    expected_ms = 2.0 ** math.ceil(math.log2(predicted_ms)) if predicted_ms > _SHORT_MS else 0.0
    return StepStarted(ids=tuple(ids), expected_ms=expected_ms)


def submit_of(command: Work) -> Submit | None:
    """The request that a command brings, if it brings one."""
    if isinstance(command, PreparedRequest | RefusedRequest):
        return command.submit
    return command if isinstance(command, Submit) else None


def failure(request_id: str, why: str, output_tokens: int, *, is_own_fault: bool = False) -> TokenEvent:
    """The last event of a generation that cannot go on."""
    finish = Finish(
        reason=FinishReason.ERROR, output_tokens=output_tokens, error=why, is_own_fault=is_own_fault
    )
    return TokenEvent(id=request_id, finish=finish)


def shared_ms(parts: Iterable[tuple[str, int]], cpu_ms: float) -> dict[str, float]:
    """The milliseconds of each client: its part of the step's tokens is its part of the step's time.

    `parts`: clients and numbers of tokens; a client may come several times. Padding is everybody's.
    """
    tokens: dict[str, int] = {}
    for client, num_tokens in parts:
        tokens[client] = tokens.get(client, 0) + num_tokens
    total = sum(tokens.values())
    return {client: cpu_ms * count / total for client, count in tokens.items()} if total else {}


def _is_urgent(command: Work | ShortenTurn) -> bool:
    """Whether an interactive request has come, here or at another engine."""
    if isinstance(command, ShortenTurn):
        return command.interrupts
    submit = submit_of(command)
    return submit is not None and submit.request.priority is Priority.INTERACTIVE


def forget_file(path: str | None) -> None:
    """What is to be forgotten must not come back from the prefix cache's file at the next start."""
    if path is not None:
        with contextlib.suppress(OSError):
            Path(path).unlink()
