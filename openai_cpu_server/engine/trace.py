"""Reports about steps beside their events: for the log, for observers, and for routers between engines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from openai_cpu_server.contract.messages import HideSteps, ShowSteps
from openai_cpu_server.contract.replica import Forecast, PrefixNews
from openai_cpu_server.contract.step import NOTHING_DRAFTED, Span, Step, StepResult, StepTrace, TracePart
from openai_cpu_server.scheduler.plan import StepReason
from openai_cpu_server.scheduler.prefix_cache import PrefixJournal
from openai_cpu_server.scheduler.scheduler import Scheduler
from openai_cpu_server.scheduler.sequence import Sequence

logger = logging.getLogger(__name__)

_NO_REASONS: Mapping[StepReason, int] = {}


def log_step(
    step: Step,
    participants: Seq[Sequence],
    reasons: Callable[[], Mapping[Sequence, Mapping[StepReason, int]]],
    result: StepResult,
    *,
    started_s: float,
    elapsed_ms: float,
) -> None:
    """Log the step before it is applied. `participants`: in the order of the spans; `reasons`: tokens of
    each sequence by reason; `started_s`: on the monotonic clock."""
    if not logger.isEnabledFor(logging.DEBUG) or not step.spans:
        return
    why = reasons()
    spans = [
        {
            "id": sequence.request.id,
            "priority": sequence.request.priority.label,
            "tokens": span.num_tokens,
            "decodes": sequence.is_decoding,
            "why": {reason.value: num for reason, num in why.get(sequence, _NO_REASONS).items()},
        }
        for sequence, span in zip(participants, step.spans, strict=True)
    ]
    fields = {
        "started_s": started_s,
        "elapsed_ms": elapsed_ms,
        "padding": result.padding,
        "interrupted": result.interrupted,
        "adapter": step.adapter,
        "spans": spans,
    }
    logger.debug(
        "step of %.1f ms: %d tokens of %d sequences, %d padding",
        elapsed_ms,
        step.num_tokens,
        len(spans),
        result.padding,
        extra={"fields": fields},
    )


_STATE_S = 0.5
"""Minimum time between two reports of the memory, because collecting it takes a fraction of a millisecond."""
_LONG_AGO = float("-inf")


class StepTracer:
    """Off until `ShowSteps`, without any cost. `note` and `take` must not be called while it is off."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.is_on = False
        self._state_sent_s = _LONG_AGO
        self._parts: tuple[TracePart, ...] = ()
        self._adapter: str | None = None

    @property
    def is_pending(self) -> bool:
        """True if a new observer has received nothing yet."""
        return self.is_on and self._state_sent_s == _LONG_AGO

    def handle(self, command: ShowSteps | HideSteps) -> None:
        self.is_on, self._parts, self._state_sent_s = isinstance(command, ShowSteps), (), _LONG_AGO

    def note(
        self,
        step: Step,
        participants: Seq[Sequence],
        encoders: Seq[Sequence],
        reasons: Mapping[Sequence, Mapping[StepReason, int]],
        result: StepResult,
    ) -> None:
        """Record an executed step before it is applied."""
        self._adapter = step.adapter
        parts = [
            _part(sequence, span, reasons.get(sequence, _NO_REASONS), result)
            for sequence, span in zip(participants, step.spans, strict=True)
        ]
        if result.encoding_ms:
            parts += [_encoding(sequence, step, result) for sequence in encoders]
        self._parts = tuple(parts)

    def take(self, scheduler: Scheduler) -> StepTrace | None:
        parts, self._parts = self._parts, ()
        is_due = self._clock() - self._state_sent_s >= _STATE_S or not scheduler.has_work
        if is_due:
            self._state_sent_s = self._clock()
        elif not parts:
            return None
        return StepTrace(
            parts=parts,
            adapter=self._adapter if parts else None,
            state=scheduler.trace_state() if is_due else None,
        )


def _part(sequence: Sequence, span: Span, reasons: Mapping[StepReason, int], result: StepResult) -> TracePart:
    drafted = result.drafted.get(span.slot, NOTHING_DRAFTED)
    forced = reasons.get(StepReason.FORCED, 0)
    others = len(span.tokens) - forced
    request, is_decoding = sequence.request, sequence.is_decoding
    first = result.samples.get(span.slot)
    samples = ((first,) if first is not None else ()) + result.further.get(span.slot, ())
    return TracePart(
        id=request.id,
        client=request.client,
        priority=request.priority,
        why=max(reasons, key=reasons.__getitem__).value if reasons else "",
        prompt=0 if is_decoding else others,
        decode=others if is_decoding else 0,
        forced=forced,
        draft=drafted.num_computed,
        accepted=drafted.num_accepted,
        output=sum(1 + len(sample.forced) for sample in samples),
    )


def _encoding(sequence: Sequence, step: Step, result: StepResult) -> TracePart:
    assert step.encode is not None
    request = sequence.request
    kind = request.item_of(step.encode.placeholder).kind
    return TracePart(request.id, request.client, request.priority, why=kind, encoding_ms=result.encoding_ms)


_FORECAST_S = 0.1
"""Minimum time between two forecasts, which take up to a millisecond: at most 1 % of a core."""


class ForecastSource:
    """Source of forecasts, at most ten times a second, and always when there is nothing more to compute."""

    def __init__(self, scheduler: Scheduler, journal: PrefixJournal, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._clock = clock
        self._sent_s = float("-inf")

    def news(self) -> tuple[Forecast | None, PrefixNews | None]:
        now_s = self._clock()
        if self._scheduler.has_work and now_s - self._sent_s < _FORECAST_S:
            return None, None
        self._sent_s = now_s
        return self._scheduler.eta_estimator.forecast(), self._journal.take()
