"""Root observer, and recent activity in bounded memory and time."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry

from openai_cpu_server.contract.figures import Amounts
from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.observe.ended import AnswerUse, Distribution, EndedCall, EndedRequest, amounts_of
from openai_cpu_server.observe.metrics import Metrics
from openai_cpu_server.observe.tracing import Tracing

S = TypeVar("S")


@dataclass
class SlicedWindow(Generic[S]):
    """Values of the last time slices, without empty ones."""

    new: Callable[[], S]
    slice_s: float
    num_slices: int
    origin_s: float = 0.0

    def __post_init__(self) -> None:
        self._slices: deque[tuple[int, S]] = deque(maxlen=self.num_slices)

    def number(self, now_s: float) -> int:
        return math.floor((now_s - self.origin_s) / self.slice_s)

    def at(self, now_s: float) -> S:
        """Return this moment's slice for adding to it."""
        number = self.number(now_s)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, self.new()))
        return self._slices[-1][1]

    def between(self, first: int, end: int) -> list[S]:
        """Exclude the slice `end`."""
        return [one for number, one in self._slices if first <= number < end]


SLICE_S = 10.0
_NUM_SLICES = 30
_SUCCESS = range(200, 300)


@dataclass
class RecentSums:
    """Sums over time. Calls count when they end, tokens when computed."""

    calls: int = 0
    failed: int = 0
    """Calls with an error or a disconnected client."""
    output_tokens: int = 0
    computed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    latency: Distribution = field(default_factory=Distribution)
    queue: Distribution = field(default_factory=Distribution)
    ttft: Distribution = field(default_factory=Distribution)
    gaps: Distribution = field(default_factory=Distribution)

    def call_ended(self, request: EndedRequest, call: EndedCall) -> None:
        self.calls += 1
        self.failed += request.code is not None or request.status not in _SUCCESS
        self.latency.add(request.seconds)
        self.queue.add(call.figures.queue_ms / 1000)
        if call.ttft_s is not None:
            self.ttft.add(call.ttft_s)
        self.gaps.merge(call.gaps)

    def step_done(self, figures: StepFigures) -> None:
        self.output_tokens += figures.sampled + figures.forced
        self.computed_tokens += 0 if figures.is_interrupted else figures.tokens
        self.drafted_tokens += figures.drafted
        self.accepted_tokens += figures.accepted

    def merge(self, other: RecentSums) -> None:
        for name, more in vars(other).items():
            own = getattr(self, name)
            if isinstance(own, Distribution):
                own.merge(more)
            else:
                setattr(self, name, own + more)


@dataclass(frozen=True)
class TimeSpan:
    seconds: float
    sums: RecentSums


class RecentActivity:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = RecentSums()
        self.answers: Counter[AnswerUse] = Counter()
        self._clock = clock
        self._started_s = clock()
        self._slices = SlicedWindow(
            RecentSums, slice_s=SLICE_S, num_slices=_NUM_SLICES, origin_s=self._started_s
        )

    @property
    def uptime_s(self) -> float:
        return self._clock() - self._started_s

    def ended(self, request: EndedRequest) -> None:
        if request.answer is not None:
            self.answers[request.answer] += 1
        if request.call is not None:
            for sums in (self.total, self._now()):
                sums.call_ended(request, request.call)

    def step_done(self, figures: StepFigures) -> None:
        for sums in (self.total, self._now()):
            sums.step_done(figures)

    def window(self) -> TimeSpan:
        """Return the last five minutes."""
        return self._last(_NUM_SLICES)

    def moment(self) -> TimeSpan:
        """Return the last 10 to 20 seconds."""
        return self._last(2)

    def _last(self, num_slices: int) -> TimeSpan:
        now = self._slices.number(self._clock())
        first = max(0, now - num_slices + 1)
        seconds = max(self.uptime_s - first * SLICE_S, 1e-9)
        sums = RecentSums()
        for part in self._slices.between(first, now + 1):
            sums.merge(part)
        return TimeSpan(seconds, sums)

    def _now(self) -> RecentSums:
        return self._slices.at(self._clock())


@dataclass(eq=False)
class Telemetry:
    """Root observer, for one event loop's thread."""

    metrics: Metrics
    recent: RecentActivity
    tracing: Tracing | None
    key_of: Callable[[str], str] = lambda client: ""
    """Name of a client's key by its label, or ""."""
    book: Callable[[str, str, Amounts], None] | None = None
    """Record of usage: key, model, amounts."""

    @classmethod
    def new(cls, *, model: str, tracing: Tracing | None = None) -> Telemetry:
        """Create a registry. `model`: name of the default model."""
        return cls(Metrics(CollectorRegistry(), model=model), RecentActivity(), tracing)

    def ended(self, request: EndedRequest) -> None:
        """Record a request once, however it ended."""
        self.metrics.ended(request)
        self.recent.ended(request)
        if self.tracing is not None:
            self.tracing.ended(request)
        if request.call is not None:
            self.used(request.key, request.call.model, amounts_of(request, request.call))

    def close(self) -> None:
        """Accept no records afterwards."""
        if self.tracing is not None:
            self.tracing.close()

    def used(self, key: str, model: str, amounts: Amounts) -> None:
        self.metrics.key_used(key, model, amounts)
        if self.book is not None:
            self.book(key, model, amounts)


@dataclass(frozen=True)
class ModelTelemetry:
    """`EngineObserver` of one model."""

    telemetry: Telemetry
    model: str

    def step_done(self, figures: StepFigures) -> None:
        self.telemetry.metrics.step_done(figures)
        self.telemetry.recent.step_done(figures)
        self.spent(figures.spent_ms)

    def spent(self, spent_ms: dict[str, float]) -> None:
        """Record CPU time by client label, as engines without reported steps need."""
        for client, cpu_ms in spent_ms.items():
            self.telemetry.used(self.telemetry.key_of(client), self.model, Amounts(cpu_ms=cpu_ms))

    def engine_died(self, cause: str) -> None:
        self.telemetry.metrics.count("engine_restarts", cause)
