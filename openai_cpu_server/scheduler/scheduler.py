from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from openai_cpu_server.contract.messages import DraftingState, KVStats
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import (
    NOTHING_DRAFTED,
    Open,
    Sample,
    SavedBlock,
    Span,
    Step,
    StepResult,
    TraceHolding,
    TraceState,
    TraceWait,
)
from openai_cpu_server.scheduler.admission import Admission, AdmissionQueue, LiveSequences
from openai_cpu_server.scheduler.compose import AdapterGroups, AdapterTurn, EncodingTurns, StepOptions
from openai_cpu_server.scheduler.cost_model import LearnedCosts
from openai_cpu_server.scheduler.eta import EtaEstimator
from openai_cpu_server.scheduler.memory import KVLedger, SequenceMemory
from openai_cpu_server.scheduler.plan import StepCapacity, StepCost, StepPlan, StepPrices
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence, SequenceAdvance, SequenceStatus
from openai_cpu_server.scheduler.speculation.speculator import ChosenDrafts, SpanDraft, Speculator


@dataclass(eq=False)
class CellClaims:
    memory: SequenceMemory
    admission: Admission

    def spans(self, plan: StepPlan) -> tuple[Span, ...]:
        spans = [self._span(sequence, num_tokens) for sequence, num_tokens in plan.parts.items()]
        # A sequence later in the plan, but better in order, may have released one that had its span already.
        running = self.memory.running
        return tuple(span for span in spans if span is not None and span.slot in running)

    def draft_limits(self, spans: tuple[Span, ...]) -> dict[Sequence, int]:
        limits: dict[Sequence, int] = {}
        for span in spans:
            sequence = self.memory.running[span.slot]
            may_draft = span.sample and not span.targets and sequence.is_decoding
            limit = min(sequence.remaining - 1, self._draft_cells(span)) if may_draft else 0
            limits[sequence] = limit
        return limits

    def with_drafts(self, plan: StepPlan, spans: tuple[Span, ...], chosen: ChosenDrafts) -> tuple[Span, ...]:
        """Add the drafts behind all other allocations, so that no sequence is preempted for a draft."""
        running = self.memory.running
        drafts = [chosen.spans.get(running[span.slot], SpanDraft()) for span in spans]
        return tuple(self._with_draft(plan, span, draft) for span, draft in zip(spans, drafts, strict=True))

    def padding(self, plan: StepPlan, prices: StepPrices) -> int:
        if not plan.num_tokens:
            return 0
        ledger = self.memory.ledger
        padding = prices.padded_size(plan.num_tokens) - plan.num_tokens
        return padding if padding <= ledger.num_free * ledger.block_size else 0

    def give_up_drafts(self, step: Step) -> None:
        for span in step.spans:
            if span.num_drafted:
                self.memory.ledger.shrink(span.slot, span.start + len(span.tokens))

    def _span(self, sequence: Sequence, num_tokens: int) -> Span | None:
        if sequence.status is not SequenceStatus.RUNNING:
            return None
        wanted, num_tokens = num_tokens, min(num_tokens, self._claim(sequence))
        if num_tokens == 0 or (num_tokens < wanted and sequence.computes_whole):
            return None
        start, end = sequence.computed, sequence.computed + num_tokens
        self.memory.ledger.grow(sequence.slot, end)
        return Span(
            slot=sequence.slot,
            start=start,
            tokens=tuple(sequence.tokens[start:end]),
            sample=end == len(sequence.tokens) and sequence.remaining > 0,
            targets=sequence.targets(start, end),
        )

    def _claim(self, sequence: Sequence) -> int:
        """Preempt later sequences in order until a token fits. Return 0 if this is the last."""
        while (room := self.memory.ledger.room(sequence.slot) - sequence.computed) <= 0:
            worst = self.admission.running_in_order()[-1]
            if worst is sequence:
                return 0
            self.admission.release(worst)
        return room

    def _draft_cells(self, span: Span) -> int:
        return self.memory.ledger.room(span.slot) - span.start - len(span.tokens)

    def _with_draft(self, plan: StepPlan, span: Span, draft: SpanDraft) -> Span:
        draft = draft.cut(self._draft_cells(span))
        if not draft.length:
            return span
        self.memory.ledger.grow(span.slot, span.start + len(span.tokens) + draft.length)
        plan.add_draft(self.memory.running[span.slot], draft.length)
        return replace(
            span, draft=draft.tokens, num_to_draft=draft.num_to_draft, num_to_read=draft.num_to_read
        )


def advance(sequence: Sequence, span: Span, result: StepResult, ledger: KVLedger) -> SequenceAdvance:
    sequence.num_padded += result.padding
    samples = samples_of(span, result, sequence.remaining)
    sequence.computed += len(span.tokens)
    sequence.tokens += [token for sample in samples for token in (sample.token, *sample.forced)]
    if span.num_drafted:
        drafted = result.drafted.get(span.slot, NOTHING_DRAFTED)
        sequence.computed += drafted.num_accepted
        sequence.num_drafted += drafted.num_computed
        sequence.num_accepted += drafted.num_accepted
        ledger.shrink(sequence.slot, sequence.computed)
    scores = result.scores.get(span.slot, ())[max(0, sequence.num_scored - span.start) :]
    sequence.num_scored += len(scores)
    failure, fault = result.failures.get(span.slot), result.faults.get(span.slot)
    return SequenceAdvance(sequence, samples, scores, failure, fault)


def samples_of(span: Span, result: StepResult, num_tokens: int) -> tuple[Sample, ...]:
    if not span.sample or span.slot not in result.samples:
        return ()
    samples: list[Sample] = []
    for sample in (result.samples[span.slot], *result.further.get(span.slot, ())):
        if num_tokens > 0:
            forced = sample.forced[: num_tokens - 1]
            samples.append(sample if forced == sample.forced else replace(sample, forced=forced))
        num_tokens -= 1 + len(sample.forced)
    return tuple(samples)


_MOST_TILES = 1024
"""Tiles in a snapshot, which bounds the message; a display shows no more."""
_MOST_RUNS = 4096
"""Tiles are enlarged until the runs of scattered cells fit."""


_MOST_WAITS = 32
"""Sequences whose reason is reported: finding it takes 20 microseconds each."""


@dataclass(frozen=True)
class StepLimits:
    num_slots: int
    step_tokens: int
    step_outputs: int
    state_tokens: int = 0
    reuses: bool = True
    """False in a benchmark: computed prefixes serve no other sequence."""


class Scheduler:
    """The caller requests a step, has it executed, and returns the result."""

    def __init__(
        self,
        *,
        limits: StepLimits,
        ledger: KVLedger,
        cache: SavedPrefixes,
        cost: StepCost,
        options: StepOptions,
        policy: PriorityPolicy,
        speculator: Speculator | None = None,
    ) -> None:
        """`speculator`: None if the backend's memory cannot be trimmed."""
        assert limits.step_tokens > limits.num_slots, "every sequence can decode in one step"
        assert limits.step_outputs >= limits.num_slots
        self._limits = limits
        self._experiment = options.experiment
        self._threshold_ms = options.preempt_threshold_ms
        self._speculator = speculator
        reused = cache if limits.reuses else None
        self._memory = SequenceMemory(num_slots=limits.num_slots, ledger=ledger, cache=cache)
        self._waiting = AdmissionQueue(policy)
        self.sequences = LiveSequences(self._memory, self._waiting, reused, speculator)
        self.costs = LearnedCosts(
            cost,
            max_tokens=limits.step_tokens,
            fills_tiles=self._experiment.tile_filling,
            equal_parts=cache.has_states,
            state_tokens=limits.state_tokens,
        )
        self._encodings = EncodingTurns(options)
        self.eta_estimator = EtaEstimator(
            self.sequences,
            self._waiting,
            self._memory.running,
            self.costs,
            self._encodings,
            policy,
            num_slots=limits.num_slots,
            stall_ms=options.stall_ms,
        )
        self._admission = Admission(
            self._waiting,
            self._memory,
            reused,
            policy,
            num_slots=limits.num_slots,
            num_seats=min(limits.num_slots - 1, math.ceil(options.batch_floor * limits.num_slots)),
        )
        self._claims = CellClaims(self._memory, self._admission)
        self._groups = AdapterGroups(options)
        self.plan = StepPlan(self._capacity)
        self._turn = AdapterTurn(None, self.plan)
        self._drafts = ChosenDrafts()

    @property
    def has_work(self) -> bool:
        return bool(self.sequences) or self._memory.has_verbs

    @property
    def kv_stats(self) -> KVStats:
        return self._memory.stats()

    @property
    def num_preemptions(self) -> int:
        return self._admission.num_preemptions

    @property
    def cache_blocks(self) -> list[SavedBlock]:
        return self._memory.cache.export()

    def trace_state(self) -> TraceState:
        ledger, running = self._memory.ledger, self._memory.running

        def holdings(tile_blocks: int) -> tuple[TraceHolding, ...]:
            requests = ((slot, sequence.request) for slot, sequence in running.items())
            return tuple(
                TraceHolding(one.id, one.client, one.priority, ledger.runs(slot, tile_blocks))
                for slot, one in requests
            )

        tile_blocks = max(1, -(-ledger.num_blocks // _MOST_TILES))
        shown = holdings(tile_blocks)
        while sum(len(holding.runs) for holding in shown) > _MOST_RUNS:
            tile_blocks *= 2
            shown = holdings(tile_blocks)
        first = islice(self._waiting.in_order(), _MOST_WAITS)
        return TraceState(
            pool_tiles=-(-ledger.num_blocks // tile_blocks),
            tile_blocks=tile_blocks,
            holdings=shown,
            waits=tuple(TraceWait(s.request.id, self._admission.waits_for(s).value) for s in first),
            cache_pinned_blocks=self._memory.cache.num_pinned,
        )

    @property
    def drafting(self) -> tuple[DraftingState, ...]:
        return () if self._speculator is None else self._speculator.states()

    def participants(self, step: Step) -> tuple[Sequence, ...]:
        return tuple(self._memory.running[span.slot] for span in step.spans)

    def encodes_for(self, step: Step) -> tuple[Sequence, ...]:
        return () if step.encode is None else (self._memory.running[step.encode.slot],)

    def newcomers(self, step: Step) -> tuple[Sequence, ...]:
        slots = [verb.slot for verb in step.verbs if isinstance(verb, Open)]
        running = self._memory.running
        return tuple(running[slot] for slot in slots if slot in running)

    def clear_cache(self) -> None:
        self._memory.clear_cache()

    # -- deciding ----------------------------------------------------------------------------------------

    def schedule(self, *, beside_interactive: bool = False, unready: Collection[int] = ()) -> Step:
        """`beside_interactive`: interactive work of another model waits. `unready`: slots for which the step
        would wait, left out if there are others."""
        if self._experiment.continuous_batching or not self._memory.running:
            self._memory.checkpoints.advise(self._limits.state_tokens, self.costs.state_in_tokens)
            self._admission.admit()
        spans = self._composed(unready, beside_interactive=beside_interactive)
        prices = self.costs.prices(self._turn.key)
        if self._speculator is not None:
            limits = self._claims.draft_limits(spans)
            self._drafts = self._speculator.drafts(self.plan, prices, limits)
            spans = self._claims.with_drafts(self.plan, spans, self._drafts)
        encode = self._encodings.encode(self._admission.running_in_order(), prices.ms(self.plan))
        step_ms = prices.ms(self.plan) + (encode.ms if encode is not None else 0.0)
        self._groups.account(self._turn, self.plan, step_ms, self._memory.running.values())
        is_long = step_ms > self._threshold_ms
        return Step(
            self._memory.take_verbs(),
            spans,
            self._claims.padding(self.plan, prices),
            self._turn.key,
            bool(spans) and is_long and self._may_be_interrupted,
            encode,
            self._drafts.reads_along,
        )

    def _composed(self, unready: Collection[int], *, beside_interactive: bool) -> tuple[Span, ...]:
        able = [s for s in self._admission.running_in_order() if not s.waits_for_encoder]
        self._turn = self._groups.compose(
            [s for s in able if s.slot not in unready] or able,
            self._capacity,
            self.costs.prices,
            newcomers=self.sequences.groups_of_newcomers,
            switch_ms=self.costs.switch_ms,
            beside_interactive=beside_interactive,
        )
        self.sequences.planned(self._turn.key, is_floor=self._turn.is_floor)
        plan = self._turn.plan
        spans = self._claims.spans(plan)
        if not spans:
            # Other groups hold all KV cells, so the turn of this one would never end. Its sequences are
            # admitted again when cells are free.
            for sequence in plan.parts:
                if sequence.status is SequenceStatus.RUNNING:
                    self._admission.release(sequence)
        self.plan = plan.limited_to({self._memory.running[s.slot]: len(s.tokens) for s in spans})
        return spans

    @property
    def _capacity(self) -> StepCapacity:
        """Score few prompt tokens, so that every other sequence has an output left."""
        outputs = self._limits.step_outputs
        scored = max(1, outputs - len(self._memory.running) + 1)
        return StepCapacity(self._limits.step_tokens, outputs, scored, self._memory.cache.has_states)

    def predicted_ms(self, step: Step) -> float:
        encoding_ms = step.encode.ms if step.encode is not None else 0.0
        return self._drafts.drafting_ms + self.costs.predict_ms(step, self.plan.attended) + encoding_ms

    @property
    def _may_be_interrupted(self) -> bool:
        """A step of batch work beside interactive work is not discarded, because frequent new requests would
        take batch work's share."""
        running = self._memory.running.values()
        is_batch = all(s.request.priority is Priority.BATCH for s in running)
        return is_batch and not any(s.is_in_one_place for s in running)

    def forget_adapter(self, key: str) -> None:
        assert not self.sequences.uses_adapter(key)
        self._groups.forget(key)
        self.costs.forget_adapter(key)

    # -- applying ----------------------------------------------------------------------------------------

    def apply(self, step: Step, result: StepResult, elapsed_ms: float | None = None) -> list[SequenceAdvance]:
        """Learn from the duration unless it is None or the step was interrupted."""
        running, ledger = self._memory.running, self._memory.ledger
        if result.interrupted:
            for sequence in self.participants(step):
                sequence.num_interruptions += 1
            self._claims.give_up_drafts(step)
            self.costs.executed(step)
            return []
        self.costs.learn_copying(step, result)
        if elapsed_ms is not None and step.spans:
            self._learn_time(
                step, result, elapsed_ms - result.verbs_ms - result.encoding_ms - result.reading_ms
            )
        self.costs.executed(step)
        self.eta_estimator.computed(self.plan, step.adapter)
        advances = [advance(running[span.slot], span, result, ledger) for span in step.spans]
        if step.encode is not None:
            advances += self._encodings.encoded(step.encode, step, result, running)
        for sequence in self.participants(step):
            self._memory.save_at_checkpoint(sequence)
        if self._speculator is not None:
            generated = [span.slot for span in step.spans if span.num_to_draft]
            outcomes = {running[slot]: result.drafted[slot] for slot in generated}
            self._speculator.learn(outcomes, result.drafting_ms)
        return advances

    def _learn_time(self, step: Step, result: StepResult, elapsed_ms: float) -> None:
        plan = self.plan.copy()
        for span in step.spans:
            missing = span.num_drafted - result.drafted.get(span.slot, NOTHING_DRAFTED).num_computed
            if missing:
                plan.drop_draft(self._memory.running[span.slot], missing)
        size = plan.size + result.padding if isinstance(plan.size, int) else plan.size
        predicted_ms = self.costs.learn(
            step, result, size=size, attended=plan.attended, elapsed_ms=elapsed_ms
        )
        if self._speculator is not None and predicted_ms is not None:
            self._speculator.compare(self._drafts.plain_ms, step, result, predicted_ms, elapsed_ms)

    def check(self) -> None:
        self.sequences.check()
        self._memory.check()
