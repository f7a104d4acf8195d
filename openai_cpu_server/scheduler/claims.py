"""From a plan to the spans of a step: what was planned, as far as there are cells for it."""

from __future__ import annotations

from openai_cpu_server.contract.step import Span
from openai_cpu_server.scheduler.admission import Admission
from openai_cpu_server.scheduler.memory import Memory
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence, Status
from openai_cpu_server.scheduler.speculation import ChosenDrafts, SpanDraft


class Claims:
    """Claims cells in the ledger for spans and their drafts."""

    def __init__(self, memory: Memory, admission: Admission) -> None:
        self._memory = memory
        self._admission = admission

    def spans(self, plan: StepPlan) -> tuple[Span, ...]:
        """The spans of the plan, for as many of its tokens as get cells."""
        spans = [self._span(sequence, num_tokens) for sequence, num_tokens in plan.parts.items()]
        # A sequence later in the plan, but better in order, may have released one that had its span already.
        running = self._memory.running
        return tuple(span for span in spans if span is not None and span.slot in running)

    def draft_limits(self, spans: tuple[Span, ...]) -> dict[Sequence, int]:
        """How many draft tokens each sequence of these spans may have."""
        return {self._memory.running[span.slot]: self._draft_limit(span) for span in spans}

    def with_drafts(self, plan: StepPlan, spans: tuple[Span, ...], chosen: ChosenDrafts) -> tuple[Span, ...]:
        """The spans with their drafts, which are added to the plan.

        Drafts come after all cells are claimed, so that nobody is released for a draft.
        """
        running = self._memory.running
        drafts = [chosen.spans.get(running[span.slot], SpanDraft()) for span in spans]
        return tuple(self._with_draft(plan, span, draft) for span, draft in zip(spans, drafts, strict=True))

    def _span(self, sequence: Sequence, num_tokens: int) -> Span | None:
        """A span of up to `num_tokens` tokens, as many as get cells; None if none do."""
        if sequence.status is not Status.RUNNING:
            return None
        num_tokens = min(num_tokens, self._claim(sequence))
        if num_tokens == 0:
            return None
        start, end = sequence.computed, sequence.computed + num_tokens
        self._memory.ledger.grow(sequence.slot, end)
        return Span(
            slot=sequence.slot,
            start=start,
            tokens=tuple(sequence.tokens[start:end]),
            sample=end == len(sequence.tokens) and sequence.remaining > 0,
            targets=sequence.targets(start, end),
        )

    def _claim(self, sequence: Sequence) -> int:
        """How many tokens the sequence has room for.

        If there is no room, sequences behind it in order are released until there is. It is 0 if the sequence
        itself is the last.
        """
        while (room := self._memory.ledger.room(sequence.slot) - sequence.computed) <= 0:
            worst = self._admission.running_in_order()[-1]
            if worst is sequence:
                return 0
            self._admission.release(worst)
        return room

    def _draft_limit(self, span: Span) -> int:
        """How many draft tokens the span may have: none in a prompt, or where tokens are scored."""
        sequence = self._memory.running[span.slot]
        if not span.sample or span.targets or not sequence.is_decoding:
            return 0
        return min(sequence.remaining - 1, self._draft_cells(span))

    def _draft_cells(self, span: Span) -> int:
        """How many cells are left for the span's draft."""
        return self._memory.ledger.room(span.slot) - span.start - len(span.tokens)

    def _with_draft(self, plan: StepPlan, span: Span, draft: SpanDraft) -> Span:
        """The span with its draft, as far as there are free cells."""
        draft = draft.cut(self._draft_cells(span))
        if not draft.length:
            return span
        self._memory.ledger.grow(span.slot, span.start + len(span.tokens) + draft.length)
        plan.add_draft(self._memory.running[span.slot], draft.length)
        return Span(
            slot=span.slot,
            start=span.start,
            tokens=span.tokens,
            sample=True,
            draft=draft.tokens,
            num_to_draft=draft.num_to_draft,
            num_to_read=draft.num_to_read,
        )
