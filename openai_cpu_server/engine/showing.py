"""What those who watch are told of each step: who was in it, who holds which cells, and who waits why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from openai_cpu_server.contract.messages import HideSteps, ShowSteps
from openai_cpu_server.contract.shown import Shown, ShownPart
from openai_cpu_server.contract.step import Drafted, Span, Step, StepResult
from openai_cpu_server.scheduler.plan import Reason
from openai_cpu_server.scheduler.scheduler import Scheduler
from openai_cpu_server.scheduler.sequence import Sequence

_STATE_S = 0.5
"""Who holds what is told twice a second at most: it takes a fraction of a millisecond to collect."""
_LONG_AGO = float("-inf")
_NOTHING = Drafted()
_NO_REASONS: Mapping[Reason, int] = {}


class Showing:
    """Off until `ShowSteps`. While it is off, nobody may call `note` or `take`, and it costs nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.is_on = False
        self._state_told_s = _LONG_AGO
        self._parts: tuple[ShownPart, ...] = ()
        self._adapter: str | None = None

    @property
    def is_owed(self) -> bool:
        """Who began to watch was told nothing yet."""
        return self.is_on and self._state_told_s == _LONG_AGO

    def heard(self, command: ShowSteps | HideSteps) -> None:
        self.is_on, self._parts, self._state_told_s = isinstance(command, ShowSteps), (), _LONG_AGO

    def note(
        self,
        step: Step,
        participants: Seq[Sequence],
        reasons: Mapping[Sequence, Mapping[Reason, int]],
        result: StepResult,
    ) -> None:
        """A step was executed. Call it before the step is applied; `participants` as its spans."""
        self._adapter = step.adapter
        self._parts = tuple(
            _part(sequence, span, reasons.get(sequence, _NO_REASONS), result)
            for sequence, span in zip(participants, step.spans, strict=True)
        )

    def take(self, scheduler: Scheduler) -> Shown | None:
        """What is to be told behind a step; None: there is nothing."""
        parts, self._parts = self._parts, ()
        is_due = self._clock() - self._state_told_s >= _STATE_S or not scheduler.has_work
        if is_due:
            self._state_told_s = self._clock()
        elif not parts:
            return None
        return Shown(
            parts=parts,
            adapter=self._adapter if parts else None,
            state=scheduler.shown_state() if is_due else None,
        )


def _part(sequence: Sequence, span: Span, reasons: Mapping[Reason, int], result: StepResult) -> ShownPart:
    drafted = result.drafted.get(span.slot, _NOTHING)
    forced = reasons.get(Reason.FORCED, 0)
    others = len(span.tokens) - forced
    request, is_decoding = sequence.request, sequence.is_decoding
    return ShownPart(
        id=request.id,
        client=request.client,
        priority=request.priority,
        why=max(reasons, key=reasons.__getitem__).value if reasons else "",
        prompt=0 if is_decoding else others,
        decode=others if is_decoding else 0,
        forced=forced,
        draft=drafted.num_computed,
        accepted=drafted.num_accepted,
        output=_num_output(span.slot, result),
    )


def _num_output(slot: int, result: StepResult) -> int:
    """Tokens that were sampled or forced behind the span."""
    first = result.samples.get(slot)
    samples = ((first,) if first is not None else ()) + result.further.get(slot, ())
    return sum(1 + len(sample.forced) for sample in samples)
