"""The continuous batching scheduler: `step = schedule(now)`, execute it, `apply(step, result)`, and again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.replica import ByPriority, Forecast
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.shown import ShownState
from openai_cpu_server.contract.step import (
    Drafted,
    Open,
    SavedBlock,
    Span,
    Step,
    StepResult,
)
from openai_cpu_server.scheduler.adapter_cost import AdapterCosts
from openai_cpu_server.scheduler.admission import Admission, WaitingRoom
from openai_cpu_server.scheduler.cohort import CohortOptions, Cohorts, Turn
from openai_cpu_server.scheduler.compose import Composer, StepOptions
from openai_cpu_server.scheduler.cost_model import CopyPrice
from openai_cpu_server.scheduler.forecast import WorkDone, make_forecast
from openai_cpu_server.scheduler.holdings import shown_state
from openai_cpu_server.scheduler.kv_ledger import KVLedger
from openai_cpu_server.scheduler.memory import Memory
from openai_cpu_server.scheduler.outlook import Line, Outlook, OutputLengths, outlook
from openai_cpu_server.scheduler.plan import Reason, StepCost, StepPlan, StepPrices, StepRoom
from openai_cpu_server.scheduler.policy import Policy
from openai_cpu_server.scheduler.prefix_cache import PrefixCache
from openai_cpu_server.scheduler.sequence import Sequence, Status
from openai_cpu_server.scheduler.spans import Advance, Claims, advance, without_missing_drafts
from openai_cpu_server.scheduler.speculation.speculator import ChosenDrafts, Speculator

_TOLD = 200
"""Waiting sequences that are told their place. It bounds a message: 50 bytes each, twice a second."""
_TOLD_WHY = 32
"""Those for whom somebody who watches is told why they wait: to find that out takes 20 microseconds each."""


@dataclass(frozen=True)
class Limits:
    """What one step of the backend can hold, and what its memory can do.

    `step_tokens` and `step_outputs` are the most tokens and rows of logits of one step.
    """

    num_slots: int
    step_tokens: int
    step_outputs: int
    can_share: bool = True


class Scheduler:
    """Decides which tokens each step computes. `Memory` keeps the books of the cells.

    The caller owns the loop: it asks for a step, lets the backend execute it, and gives back the result. It
    tells the sequences that end.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        ledger: KVLedger,
        cache: PrefixCache,
        cost: StepCost,
        options: StepOptions,
        policy: Policy,
        speculator: Speculator | None = None,
    ) -> None:
        """A scheduler without sequences.

        `speculator`: None, nothing is drafted, as it must be where the backend's memory cannot be trimmed.
        """
        assert limits.step_tokens > limits.num_slots, "every sequence can decode in one step"
        assert limits.step_outputs >= limits.num_slots
        self._limits = limits
        self._cache = cache if limits.can_share else None
        self.cost = cost
        """The cost model; it may be replaced between two steps."""
        self._policy = policy
        self._memory = Memory(num_slots=limits.num_slots, ledger=ledger, cache=cache)
        self._options = options
        self._cohorts = _cohorts(options)
        self._adapter_costs = AdapterCosts()
        self._computed_with: str | None = None
        """The adapter of the last step that computed something."""
        self._speculator = speculator
        self._copy_price = CopyPrice()
        self._lengths = OutputLengths()
        self._work = WorkDone(limits.num_slots)
        self._waiting = WaitingRoom(policy)
        self._admission = Admission(
            self._waiting,
            self._memory,
            self._cache,
            policy,
            num_slots=limits.num_slots,
            num_seats=min(limits.num_slots - 1, math.ceil(options.batch_floor * limits.num_slots)),
        )
        self._claims = Claims(self._memory, self._admission)
        self._sequences: dict[str, Sequence] = {}
        self._counts = dict.fromkeys(Priority, 0)
        """The number of sequences of each priority."""
        self._arrivals = 0
        self._arrived: list[Sequence] = []
        """The sequences that came since the last step of their cohort was made."""
        self._plan = StepPlan(self._room)
        """The plan of the step that is being executed."""
        self._turn = Turn(None, self._plan)
        """Whose step that is."""
        self._drafts = ChosenDrafts()
        """The drafts in it."""

    @property
    def has_work(self) -> bool:
        return bool(self._sequences) or self._memory.has_verbs

    @property
    def best_priority(self) -> Priority | None:
        """The best priority of all sequences, waiting or running; None: there are none."""
        return next((priority for priority in Priority if self._counts[priority]), None)

    @property
    def kv_stats(self) -> KVStats:
        return self._memory.stats()

    @property
    def num_preemptions(self) -> int:
        """How many times sequences were released since the start."""
        return self._admission.num_preemptions

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def cache_blocks(self) -> list[SavedBlock]:
        return self._memory.cache.export()

    def outlook(self) -> list[Outlook]:
        """What the first of those who wait may expect, in their order."""
        return outlook(islice(self._waiting.in_order(), _TOLD), self._line())

    def forecast(self) -> Forecast:
        """What a newcomer may expect."""
        return make_forecast(
            self._waiting,
            self._memory.running.values(),
            self._line(),
            self.cost,
            policy=self._policy,
            stall_ms=self._options.stall_ms,
            work_ms=self._work.ms,
            num_live=ByPriority(*self._counts.values()),
        )

    def _line(self) -> Line:
        return Line(
            list(self._memory.running.values()),
            self.cost,
            num_slots=self._limits.num_slots,
            expected_left=lambda s: self._lengths.left(s.request, s.num_output),
            lane=self._policy.lane,
        )

    def shown_state(self) -> ShownState:
        """Who holds which cells, and what the first of those who wait lack."""
        first = islice(self._waiting.in_order(), _TOLD_WHY)
        return shown_state(self._memory, [(s, self._admission.waits_for(s)) for s in first])

    @property
    def preempted(self) -> list[Sequence]:
        """The sequences that were released and wait to run again."""
        return [
            sequence
            for sequence in self._sequences.values()
            if sequence.num_preemptions and sequence.status is Status.WAITING
        ]

    def get(self, request_id: str) -> Sequence | None:
        return self._sequences.get(request_id)

    def participants(self, step: Step) -> tuple[Sequence, ...]:
        """The sequences that have a span in the step, in the order of the spans."""
        return tuple(self._memory.running[span.slot] for span in step.spans)

    def newcomers(self, step: Step) -> tuple[Sequence, ...]:
        """Sequences that get their slot in the step, whether they have a span in it or not."""
        slots = [verb.slot for verb in step.verbs if isinstance(verb, Open)]
        running = self._memory.running
        return tuple(running[slot] for slot in slots if slot in running)

    def submit(
        self,
        request: GenerationRequest,
        output: tuple[int, ...] = (),
        beginning: tuple[int, ...] = (),
        *,
        now_s: float = 0.0,
    ) -> Sequence:
        """Accept a request that fits into the pool.

        `output` was generated by an engine that died; `beginning` is forced behind that, and computed with
        the prompt. Together they are at most `max_tokens`.
        """
        ledger = self._memory.ledger
        assert ledger.blocks_for(request.total_tokens) <= ledger.num_blocks
        expected = len(output) + self._lengths.left(request, len(output))
        sequence = Sequence(request, output, beginning, self._arrivals, now_s, expected)
        if self._cache is not None:
            saved = self._cache.match(sequence.tokens, request.cells_namespace, sequence.reusable)
            sequence.expected_reuse = saved.num_tokens
        self._arrivals += 1
        self._arrived.append(sequence)
        self._sequences[request.id] = sequence
        self._counts[request.priority] += 1
        self._waiting.enter(sequence)
        return sequence

    def complete(self, sequence: Sequence) -> None:
        """Finish a sequence that has ended by itself, and learn from its length how long others will be."""
        self._lengths.learn(sequence.request, sequence.num_output)
        self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Let the sequence leave, for whatever reason. Its cells are free for the next step."""
        if sequence.status is Status.RUNNING:
            self._memory.vacate(sequence)
        else:
            self._waiting.leave(sequence)
        sequence.finish()
        if self._speculator is not None:
            self._speculator.forget(sequence)
        del self._sequences[sequence.request.id]
        self._counts[sequence.request.priority] -= 1

    def clear_cache(self) -> None:
        """Forget all saved blocks but those that are pinned."""
        self._memory.clear_cache()

    # -- deciding --------------------------------------------------------------------------------------

    def schedule(self, *, beside_interactive: bool = False) -> Step:
        """The next step; it has no spans if there is nothing to compute.

        `beside_interactive`: interactive work of another model waits meanwhile, and the step is as short as
        beside interactive work of this one.
        """
        if self._options.experiment.continuous_batching or not self._memory.running:
            self._admission.admit()
        spans = self._composed(beside_interactive=beside_interactive)
        prices = self._prices(self._turn.key)
        if self._speculator is not None:
            limits = self._claims.draft_limits(spans)
            self._drafts = self._speculator.drafts(self._plan, prices, limits)
            spans = self._claims.with_drafts(self._plan, spans, self._drafts)
        self._cohorts.account(self._turn, self._plan, prices.ms(self._plan), self._memory.running.values())
        padding = self._padding(prices, self._plan.num_tokens)
        return Step(self._memory.take_verbs(), spans, padding, self._turn.key)

    def _composed(self, *, beside_interactive: bool) -> tuple[Span, ...]:
        """The spans of the next step without drafts; it keeps their plan."""
        running = self._admission.running_in_order()
        newcomers = frozenset(s.request.adapter for s in self._arrived if _is_newcomer(s))
        self._turn = self._cohorts.compose(
            running,
            self._room,
            self._prices,
            newcomers=newcomers,
            switch_ms=self._adapter_costs.switch_ms,
            beside_interactive=beside_interactive,
        )
        self._arrived = [s for s in self._arrived if _is_newcomer(s) and not self._is_served(s)]
        plan = self._turn.plan
        spans = self._claims.spans(plan)
        if not spans:
            self._make_way(plan)
        self._plan = plan.limited_to({self._memory.running[s.slot]: len(s.tokens) for s in spans})
        return spans

    def _make_way(self, plan: StepPlan) -> None:
        """Release the sequences of a cohort that gets no cells, for those of other cohorts hold all of them:
        else its turn would never end. They are admitted again when cells are free."""
        for sequence in plan.parts:
            if sequence.status is Status.RUNNING:
                self._admission.release(sequence)

    def reasons(self, sequence: Sequence) -> dict[Reason, int]:
        """How many tokens of the sequence the step that is being executed computes for which reason."""
        return self._plan.reasons(sequence)

    def all_reasons(self) -> dict[Sequence, dict[Reason, int]]:
        """The same of all sequences in it."""
        return self._plan.all_reasons()

    def predicted_ms(self, step: Step) -> float:
        """How long the step that `schedule` has just returned will take, in milliseconds."""
        size = step.num_tokens + step.padding
        copying_ms = self._copy_price.predict_ms(step.verbs)
        if not size:
            return self._drafts.drafting_ms + copying_ms
        switch_ms = self._adapter_costs.switch_ms if step.adapter != self._computed_with else 0.0
        step_ms = self._cost_of(step.adapter).predict_ms(size, self._plan.attended)
        return self._drafts.drafting_ms + copying_ms + switch_ms + step_ms

    def may_interrupt(self, step: Step) -> bool:
        """Whether an interactive newcomer may throw this step away: nobody interactive runs.

        A step of batch work alone beside interactive work is one that it has saved for, and no long one: were
        that thrown away, batch work would lose its share wherever newcomers come often.
        """
        running = self._memory.running.values()
        return bool(step.spans) and all(s.request.priority is Priority.BATCH for s in running)

    def forget_adapter(self, key: str) -> None:
        """The adapter is gone, and no sequence uses it."""
        assert not self.uses_adapter(key)
        self._cohorts.forget(key)
        self._adapter_costs.forget(key)

    def uses_adapter(self, key: str) -> bool:
        """Whether a sequence that has not finished computes with this adapter."""
        return any(sequence.request.adapter == key for sequence in self._sequences.values())

    def _is_served(self, sequence: Sequence) -> bool:
        """Whether it is of the cohort whose step is being made."""
        return sequence.request.adapter == self._turn.key and not self._turn.is_floor

    def _cost_of(self, adapter: str | None) -> StepCost:
        return self._adapter_costs.of(adapter, self.cost)

    def _prices(self, adapter: str | None) -> StepPrices:
        cost = self._cost_of(adapter)
        return StepPrices(cost, self._limits.step_tokens, fills_tiles=self._options.experiment.tile_filling)

    @property
    def _room(self) -> StepRoom:
        """The room of a step. Few enough prompt tokens are scored that all others have an output left."""
        outputs = self._limits.step_outputs
        scored = max(1, outputs - len(self._memory.running) + 1)
        return StepRoom(self._limits.step_tokens, outputs, scored)

    def _padding(self, prices: StepPrices, num_tokens: int) -> int:
        """How many padding tokens make the step faster: 0 if none, or if there are no cells for them."""
        if not num_tokens:
            return 0
        ledger = self._memory.ledger
        padding = prices.padded_size(num_tokens) - num_tokens
        return padding if padding <= ledger.num_free * ledger.block_size else 0

    # -- applying --------------------------------------------------------------------------------------

    def apply(self, step: Step, result: StepResult, elapsed_ms: float | None = None) -> list[Advance]:
        """Take over what the step computed, and learn from the time that it took (None: learn nothing).

        An interrupted step computed nothing.
        """
        if result.interrupted:
            for sequence in self.participants(step):
                sequence.num_interruptions += 1
            self._give_up_drafts(step)
            self._note_adapter(step)
            return []
        self._copy_price.learn(step.verbs, result.verbs_ms)
        if elapsed_ms is not None and step.spans:
            self._learn_time(step, result, elapsed_ms)
        self._note_adapter(step)
        self._work.count(self._plan, self._cost_of(step.adapter))
        running, ledger = self._memory.running, self._memory.ledger
        advances = [advance(running[span.slot], span, result, ledger) for span in step.spans]
        if self._speculator is not None:
            self._speculator.learn(self._model_outcomes(step, result), result.drafting_ms)
        return advances

    def _learn_time(self, step: Step, result: StepResult, elapsed_ms: float) -> None:
        """Teach the cost model, and the speculator, what the step took, the time of its verbs taken off."""
        plan, num_missing = without_missing_drafts(self._plan, step, result, self._memory.running)
        size = step.num_tokens - num_missing + result.padding
        elapsed_ms -= result.verbs_ms
        cost = self._cost_of(step.adapter)
        predicted_ms = cost.predict_ms(size, plan.attended) + result.drafting_ms
        if step.adapter != self._computed_with:
            # What a switch takes is no price of this size of step.
            self._adapter_costs.learn_switch(elapsed_ms - predicted_ms)
            return
        if self._speculator is not None:
            self._speculator.compare(self._drafts.plain_ms, step, result, predicted_ms, elapsed_ms)
        cost.refine(size, plan.attended, elapsed_ms - result.drafting_ms)

    def _note_adapter(self, step: Step) -> None:
        if step.spans:
            self._computed_with = step.adapter

    def _model_outcomes(self, step: Step, result: StepResult) -> dict[Sequence, Drafted]:
        """The outcomes of the drafts that the draft model was asked for, by sequence."""
        asked = {s.slot: self._memory.running[s.slot] for s in step.spans if s.num_to_draft}
        return {sequence: result.drafted[slot] for slot, sequence in asked.items()}

    def _give_up_drafts(self, step: Step) -> None:
        """Give back the cells that were claimed for the drafts of a step that was interrupted."""
        for span in step.spans:
            if span.num_drafted:
                self._memory.ledger.shrink(span.slot, span.start + len(span.tokens))

    def check(self) -> None:
        """Assert that sequences and memory agree (tests call this after every step)."""
        for sequence in self._memory.running.values():
            assert self._sequences[sequence.request.id] is sequence
        assert len(self._waiting) + len(self._memory.running) == len(self._sequences)
        self._memory.check()


def _cohorts(options: StepOptions) -> Cohorts:
    return Cohorts(
        CohortOptions(options.batch_floor, options.pace_ms, options.batch_stall_ms),
        new_composer=lambda: Composer(options),
    )


def _is_newcomer(arrived: Sequence) -> bool:
    """Whether one that came since the last step is interactive, and got a slot at once."""
    return arrived.status is Status.RUNNING and arrived.request.priority is Priority.INTERACTIVE
