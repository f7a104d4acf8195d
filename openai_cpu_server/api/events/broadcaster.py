"""Steps and rates for all listeners. Without listeners the engines send no steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from openai_cpu_server.api.events.schema import Latency, Quantiles, Rates
from openai_cpu_server.contract.engine import LiveRequest
from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import StepTrace, TracePart, TraceState
from openai_cpu_server.errors import TooManyWatchers
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.ended import Distribution
from openai_cpu_server.observe.telemetry import SlicedWindow

_SLICE_S = 2.0
_SLICES = 5


def _nothing() -> dict[Priority, Distribution]:
    return {priority: Distribution() for priority in Priority}


@dataclass
class _Slice:
    output: int = 0
    computed: int = 0
    ttft: dict[Priority, Distribution] = field(default_factory=_nothing)
    gaps: dict[Priority, Distribution] = field(default_factory=_nothing)


class RateWindow:
    """Ten seconds in slices of bounded size."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._slices = SlicedWindow(_Slice, slice_s=_SLICE_S, num_slices=_SLICES + 1)

    def computed(self, now_s: float, *, tokens: int, output: int) -> None:
        now = self._slices.at(now_s)
        now.computed += tokens
        now.output += output

    def first_token(self, now_s: float, priority: Priority, seconds: float) -> None:
        self._slices.at(now_s).ttft[priority].add(seconds)

    def tokens(self, now_s: float, priority: Priority, gap_s: float, count: int) -> None:
        self._slices.at(now_s).gaps[priority].add(gap_s / count, count)

    def rates(self, now_s: float) -> Rates:
        number = self._slices.number(now_s)
        slices = self._slices.between(number - _SLICES, number)
        seconds = max(1e-3, min(_SLICES * _SLICE_S, number * _SLICE_S - self._began_s))
        return Rates(
            window_s=_SLICES * _SLICE_S,
            output_tokens_per_s=round(sum(one.output for one in slices) / seconds, 2),
            computed_tokens_per_s=round(sum(one.computed for one in slices) / seconds, 2),
            priorities={
                priority.label: Latency(
                    ttft_ms=_quantiles([one.ttft[priority] for one in slices]),
                    inter_token_ms=_quantiles([one.gaps[priority] for one in slices]),
                )
                for priority in Priority
            },
        )


def _quantiles(parts: list[Distribution]) -> Quantiles:
    whole = Distribution()
    for part in parts:
        whole.merge(part)
    p50, p95 = (
        None if seconds is None else round(1000 * seconds, 2)
        for seconds in (whole.quantile_s(0.5), whole.quantile_s(0.95))
    )
    return Quantiles(count=whole.num, p50=p50, p95=p95)


MOST_LISTENERS = 32
FOR_ADMINISTRATORS = 8
MOST_OF_ONE = 4
MOST_OF_ADMINISTRATOR = 8
_MAX_STEPS = 1000
"""About 4 KiB each with 16 sequences. Older ones are dropped."""
_MAX_READ_AT_ONCE = 100
"""Above this number live requests are read ten times a second, not for each new one."""
_LOOK_S = 0.1


class SeenStep(NamedTuple):
    model: ServedModel
    ended_s: float
    """Monotonic time."""
    figures: StepFigures
    shown: StepTrace


class Subscriber(NamedTuple):
    client: str
    is_administrator: bool


class FeedNews(NamedTuple):
    steps: Sequence[SeenStep]
    num_dropped: int
    next: int


class StepBroadcaster:
    """Owned by one event loop."""

    def __init__(self, models: ModelRegistry, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._models = models
        self._clock = clock
        self._listeners: list[Subscriber] = []
        self._current_models: list[ServedModel] = []
        self._steps: deque[SeenStep] = deque(maxlen=_MAX_STEPS)
        self.position = 0
        self._states: dict[str, TraceState] = {}
        self.pace = RateWindow(clock())
        self._generating: dict[str, float] = {}
        self._ages: dict[str, tuple[float, bool]] = {}
        """Submission time, and whether output existed at the last look."""
        self._looked_s = 0.0
        self._live: dict[str, tuple[ServedModel, float, Sequence[LiveRequest]]] = {}
        """Model, time and live requests of the last look."""

    def check_room(self, subscriber: Subscriber) -> None:
        num_own = self._listeners.count(subscriber)
        if num_own >= (MOST_OF_ADMINISTRATOR if subscriber.is_administrator else MOST_OF_ONE):
            raise TooManyWatchers
        num_others = sum(not one.is_administrator for one in self._listeners)
        is_full = not subscriber.is_administrator and num_others >= MOST_LISTENERS - FOR_ADMINISTRATORS
        if is_full or len(self._listeners) >= MOST_LISTENERS:
            raise TooManyWatchers

    @contextmanager
    def listening(self, subscriber: Subscriber) -> Iterator[None]:
        """Record steps until the context ends. Raises TooManyWatchers."""
        self.check_room(subscriber)
        if not self._listeners:
            self.pace = RateWindow(self._clock())
            self.look_for_models()
        self._listeners.append(subscriber)
        try:
            yield
        finally:
            self._listeners.remove(subscriber)
            if not self._listeners:
                self._end()

    def since(self, position: int) -> FeedNews:
        first = self.position - len(self._steps)
        steps = [self._steps[n - first] for n in range(max(position, first), self.position)]
        return FeedNews(steps, max(0, first - position), self.position)

    def state_of(self, model: ServedModel) -> TraceState | None:
        return self._states.get(model.name)

    def requests_of(self, model: ServedModel) -> Sequence[LiveRequest]:
        """Cache live requests briefly for all listeners."""
        now_s = self._clock()
        seen, looked_s, requests = self._live.get(model.name, (None, 0.0, ()))
        if seen is not model or now_s - looked_s >= _LOOK_S:
            requests = model.engine.requests()
            self._live[model.name] = model, now_s, requests
        return requests

    def look_for_models(self) -> None:
        for model in self._models.current:
            if model not in self._current_models:
                self._watch(model)

    def _end(self) -> None:
        for model in self._current_models:
            model.engine.hide_steps()
        self._current_models.clear()
        self._steps.clear()
        for seen in (self._states, self._generating, self._ages, self._live):
            seen.clear()

    def _watch(self, model: ServedModel) -> None:
        for former in [one for one in self._current_models if one.name == model.name]:
            self._current_models.remove(former)
            former.engine.hide_steps()
        self._current_models.append(model)
        model.engine.show_steps(partial(self._add_step, model))

    def _add_step(self, model: ServedModel, figures: StepFigures | None, shown: StepTrace) -> None:
        if model not in self._current_models:
            return  # it was replaced, and this step was on its way
        now_s = self._clock()
        if shown.state is not None:
            self._states[model.name] = shown.state
        if figures is None or not shown.parts:
            return
        self._steps.append(SeenStep(model, now_s, figures, shown))
        self.position += 1
        if not figures.is_interrupted:
            output = sum(part.output for part in shown.parts)
            self.pace.computed(now_s, tokens=figures.tokens, output=output)
            for part in shown.parts:
                if part.output:
                    self._add_output(model, part, now_s)

    def _add_output(self, model: ServedModel, part: TracePart, now_s: float) -> None:
        """Count output as a first token unless the request had some before the stream began."""
        last_s = self._generating.get(part.id)
        self._generating[part.id] = now_s
        if last_s is not None:
            self.pace.tokens(now_s, part.priority, now_s - last_s, part.output)
            return
        if len(self._ages) < _MAX_READ_AT_ONCE or now_s - self._looked_s >= _LOOK_S:
            self._look_at_requests(now_s)
        submitted_s, had_output = self._ages.get(part.id, (self._looked_s, False))
        if not had_output:
            self.pace.first_token(now_s, part.priority, now_s - submitted_s)

    def _look_at_requests(self, now_s: float) -> None:
        live = [one for model in self._models for one in model.engine.requests()]
        self._ages = {one.id: (now_s - one.age_s, one.output_tokens > 0) for one in live}
        self._generating = {
            name: at_s for name, at_s in self._generating.items() if name in self._ages or at_s == now_s
        }
        self._looked_s = now_s
