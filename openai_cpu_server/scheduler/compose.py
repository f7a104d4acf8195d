"""Tokens of each sequence in a step. A step has sequences of one adapter, or of the base model; one media
item is encoded behind it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from openai_cpu_server.contract.messages import AS_SERVED, Experiment, Scheduling
from openai_cpu_server.contract.model_info import TILE_TOKENS
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import Encode, Step, StepResult
from openai_cpu_server.fairness import Credit, FairTurns
from openai_cpu_server.scheduler.plan import StepCapacity, StepPlan, StepPrices, StepReason
from openai_cpu_server.scheduler.sequence import Sequence, SequenceAdvance, SequenceStatus


class StepOptions(Scheduling, frozen=True, kw_only=True):
    experiment: Experiment = AS_SERVED


@dataclass(frozen=True)
class _Candidates:
    decoding: list[Sequence] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)
    batch_decoding: list[Sequence] = field(default_factory=list)
    batch_prefilling: list[Sequence] = field(default_factory=list)

    @classmethod
    def of(cls, running: Seq[Sequence], *, mixes: bool) -> _Candidates:
        found = cls()
        for sequence in running:
            if _is_interactive(sequence):
                group = found.decoding if sequence.is_decoding else found.prefilling
            else:
                group = found.batch_decoding if sequence.is_decoding else found.batch_prefilling
            group.append(sequence)
        if not mixes and (found.prefilling or found.batch_prefilling):
            return cls(prefilling=found.prefilling, batch_prefilling=found.batch_prefilling)
        return found

    @property
    def interactive(self) -> list[Sequence]:
        return self.decoding + self.prefilling

    @property
    def batch(self) -> list[Sequence]:
        return self.batch_decoding + self.batch_prefilling


class _Slack:
    """Longest step for which streams keep their rate and no gap exceeds a stall. Saved time is spent on one
    long step, so that a short prompt is computed at once."""

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self.ms = options.stall_ms
        """Between the time of a token at the rate and a stall."""

    def account(self, step_ms: float, *, brings_tokens: bool) -> None:
        earned_ms = self._options.pace_ms if brings_tokens else 0.0
        ms = self.ms + earned_ms - step_ms
        self.ms = min(max(ms, self._options.pace_ms), self._options.stall_ms)

    def fill(self) -> None:
        """A new stream has seen no slow step."""
        self.ms = self._options.stall_ms


class Composer:
    """Order: interactive decodes, interactive prompts, batch decodes, batch prompts. Batch work earns
    `batch_floor` of each step's time, spent on tokens beyond a budget or on a step of its own."""

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self._slack = _Slack(options)
        self._credit = Credit(options.batch_floor, most=options.batch_stall_ms)
        self._has_passed_over = False

    def compose(
        self,
        running: Seq[Sequence],
        capacity: StepCapacity,
        prices: StepPrices,
        *,
        has_newcomer: bool,
        beside_interactive: bool = False,
    ) -> StepPlan:
        """`has_newcomer`: a new interactive sequence has a slot. `beside_interactive`: others wait for the
        step's end."""
        wanted = _Candidates.of(running, mixes=self._options.experiment.mixed_steps)
        own_step = None if self._has_passed_over else self._step_of_batch(wanted, capacity, prices)
        self._has_passed_over = has_newcomer and own_step is not None
        if own_step is not None:
            return own_step
        return self._step_of_all(wanted, capacity, prices, beside_interactive=beside_interactive)

    def account(self, plan: StepPlan, step_ms: float, running: Iterable[Sequence]) -> None:
        running = list(running)
        streams = [s for s in running if _is_interactive(s) and s.is_decoding]
        if streams:
            self._slack.account(step_ms, brings_tokens=all(s in plan.parts for s in streams))
        else:
            self._slack.fill()
        if not plan.num_tokens or len({s.request.priority for s in running}) < len(Priority):
            self._credit.lapse()
            return
        batch_tokens = sum(plan.num_of(s) for s in plan.parts if not _is_interactive(s))
        self._credit.account(step_ms, own=step_ms * batch_tokens / plan.num_tokens)

    def let_wait(self, ms: float) -> None:
        self._slack.account(ms, brings_tokens=False)

    def _step_of_batch(
        self, wanted: _Candidates, capacity: StepCapacity, prices: StepPrices
    ) -> StepPlan | None:
        if not (self._credit.amount and wanted.batch and wanted.interactive):
            return None
        step = _Composition(StepPlan(capacity, self._options.batch_beside_ms), prices)
        step.add_batch(wanted, step.plan.budget_ms, StepReason.BATCH_FLOOR)
        step.fill_tile(wanted.batch)
        return step.plan if self._credit.pays_for(prices.ms(step.plan)) else None

    def _step_of_all(
        self, wanted: _Candidates, capacity: StepCapacity, prices: StepPrices, *, beside_interactive: bool
    ) -> StepPlan:
        options = self._options
        is_watched = beside_interactive or bool(wanted.interactive)
        unwatched_ms = options.stall_ms if beside_interactive else options.batch_stall_ms
        longest_ms = self._slack.ms if wanted.decoding else unwatched_ms
        budget_ms = options.batch_beside_ms if is_watched else options.batch_stall_ms
        steady_ms = options.pace_ms if is_watched else options.batch_stall_ms
        step = _Composition(StepPlan(capacity, steady_ms), prices)
        step.decode(wanted.decoding, longest_ms)
        step.read_fairly(wanted.prefilling, longest_ms)
        paid_ms = prices.ms(step.plan) + min(self._credit.amount, budget_ms)
        if self._credit.amount and paid_ms > budget_ms:
            step.add_batch(wanted, paid_ms, StepReason.BATCH_FLOOR)
        else:
            step.add_batch(wanted, budget_ms)
        step.fill_tile(wanted.interactive + wanted.batch)
        return step.plan


def _is_interactive(sequence: Sequence) -> bool:
    return sequence.request.priority is Priority.INTERACTIVE


@dataclass(frozen=True)
class _Composition:
    plan: StepPlan
    prices: StepPrices

    def decode(self, decoding: Seq[Sequence], burst_ms: float) -> None:
        for sequence in decoding:
            self.plan.add(sequence, 1, StepReason.DECODE)
        self._add_forced(decoding, burst_ms, StepReason.FORCED)

    def read_fairly(self, prefilling: Seq[Sequence], budget_ms: float) -> None:
        """Give half of the tokens to the first prompt and the rest to the shortest, so that none waits for
        all of another. They get a tile even beyond the budget, because decodes could starve them."""
        if not prefilling:
            return
        if self.plan.in_equal_parts:
            self._read_level(prefilling, budget_ms)
            return
        plan, first, apart = self.plan, prefilling[0], self.plan.copy()
        unread = min(sum(map(plan.left_of, prefilling)), max(TILE_TOKENS, self.prices.chunk_room(plan)))
        fits, least = self.prices.fit(plan, first, unread, budget_ms), min(TILE_TOKENS, unread)
        reason = StepReason.PROMPT if fits >= least else StepReason.LEAST
        end = plan.num_tokens + max(fits, least)
        plan.add(first, -(-max(fits, least) // 2), reason)
        for sequence in sorted(prefilling, key=plan.left_of):
            num_tokens = min(plan.left_of(sequence), end - plan.num_tokens)
            if num_tokens > 0 and self._is_better_together(prefilling, sequence, num_tokens, apart):
                plan.add(sequence, num_tokens, reason)

    def _read_level(self, prefilling: Seq[Sequence], budget_ms: float) -> None:
        """Give the first and the shortest prompt equally many tokens, because each other length is another
        pass over the weights."""
        plan = self.plan
        chosen = [prefilling[0], *sorted(prefilling[1:], key=plan.left_of)[:1]]

        def ms(level: int) -> float:
            trial = plan.copy()
            for sequence in chosen:
                trial.add(sequence, level, StepReason.PROMPT)
            return self.prices.ms(trial)

        room = max(1, self.prices.chunk_room(plan) // len(chosen))
        most = min(max(map(plan.left_of, chosen)), room)
        level = most if ms(most) <= budget_ms else bisect_right(range(1, most), budget_ms, key=ms)
        reason = StepReason.PROMPT if level * len(chosen) >= TILE_TOKENS else StepReason.LEAST
        for sequence in chosen:
            plan.add(sequence, max(level, -(-TILE_TOKENS // len(chosen))), reason)

    def _is_better_together(
        self, prefilling: Seq[Sequence], sequence: Sequence, num_tokens: int, apart: StepPlan
    ) -> bool:
        """Return True if the sum of times to first token falls when these tokens are computed now."""
        ending = sum(not self.plan.left_of(one) for one in prefilling)
        delay_ms = self.prices.ms_with(self.plan, sequence, num_tokens) - self.prices.ms(self.plan)
        saved_ms = self.prices.ms_with(apart, sequence, num_tokens) - delay_ms
        return ending * delay_ms <= (len(prefilling) - ending) * saved_ms

    def add_batch(self, wanted: _Candidates, budget_ms: float, reason: StepReason | None = None) -> None:
        for sequence in wanted.batch_decoding:
            self._add_within(sequence, 1, budget_ms, reason or StepReason.DECODE)
        decoding = [sequence for sequence in wanted.batch_decoding if sequence in self.plan.parts]
        self._add_forced(decoding, budget_ms, reason or StepReason.FORCED)
        for sequence in wanted.batch_prefilling:
            num_tokens = min(sequence.readable, self.prices.chunk_room(self.plan))
            self._add_within(sequence, num_tokens, budget_ms, reason or StepReason.PROMPT)
        if not self.plan.num_tokens:
            for sequence in wanted.batch[:1]:
                self.plan.add(sequence, TILE_TOKENS, StepReason.LEAST)

    def fill_tile(self, sequences: Seq[Sequence]) -> None:
        plan = self.plan
        size = self.prices.worthwhile_size(plan.num_tokens)
        for sequence in sequences:
            plan.add(sequence, min(plan.left_of(sequence), size - plan.num_tokens), StepReason.TILE)

    def _add_forced(self, decoding: Seq[Sequence], budget_ms: float, reason: StepReason) -> None:
        """Fewest forced tokens first: they sample again when all are computed."""
        for sequence in sorted(decoding, key=self.plan.left_of):
            self._add_within(sequence, self.plan.left_of(sequence), budget_ms, reason)

    def _add_within(self, sequence: Sequence, wanted: int, budget_ms: float, reason: StepReason) -> None:
        self.plan.add(sequence, self.prices.fit(self.plan, sequence, wanted, budget_ms), reason)


_AdapterKey = str | None

_TURN_SWITCHES = {Priority.INTERACTIVE: 10, Priority.BATCH: 50}
"""Duration of a turn in adapter switches, which so cost a tenth of the time if a client waits for each token,
else a fiftieth."""


class AdapterTurn(NamedTuple):
    key: _AdapterKey
    plan: StepPlan
    is_floor: bool = False


@dataclass(eq=False)
class AdapterGroups:
    """Turns of groups by their used time, interactive work first. Batch work of other groups earns
    `batch_floor` of the time for short steps, never two in a row."""

    options: StepOptions
    _composers: dict[_AdapterKey, Composer] = field(default_factory=dict)
    _last: _AdapterKey = None
    _switch_ms: float = 0.0
    _was_floor: bool = False

    def __post_init__(self) -> None:
        self._longest_turn_ms = {
            Priority.INTERACTIVE: self.options.pace_ms,
            Priority.BATCH: self.options.batch_stall_ms,
        }
        self._turns = {priority: FairTurns[_AdapterKey](favours_newcomers=True) for priority in Priority}
        self._credit = Credit(self.options.batch_floor, most=self.options.pace_ms)

    def compose(
        self,
        running: Seq[Sequence],
        capacity: StepCapacity,
        prices: Callable[[_AdapterKey], StepPrices],
        *,
        newcomers: frozenset[_AdapterKey],
        switch_ms: float,
        beside_interactive: bool = False,
    ) -> AdapterTurn:
        members = members_of(running)
        self._switch_ms = switch_ms
        urgent = _having(members, Priority.INTERACTIVE)
        others = [key for key in _having(members, Priority.BATCH) if key not in urgent]
        self._turns[Priority.INTERACTIVE].only(urgent)
        self._turns[Priority.BATCH].only(others)
        if not others or not urgent:
            self._credit.lapse()
        elif not self._was_floor and (floor := self._floor_turn(members, capacity, prices)) is not None:
            return floor
        key = self._chosen(Priority.INTERACTIVE if urgent else Priority.BATCH, newcomers) if members else None
        plan = self._composer(key).compose(
            members.get(key, ()),
            capacity,
            prices(key),
            has_newcomer=key in newcomers,
            beside_interactive=beside_interactive or any(other != key for other in urgent),
        )
        return AdapterTurn(key, plan)

    def account(self, turn: AdapterTurn, plan: StepPlan, step_ms: float, running: Iterable[Sequence]) -> None:
        members = members_of(running)
        self._composer(turn.key).account(plan, step_ms, members.pop(turn.key, []))
        if not plan.num_tokens:
            return
        for key in members:
            self._composer(key).let_wait(step_ms)
        self._last, self._was_floor = turn.key, turn.is_floor
        used_ms = self._floor_ms(step_ms) if turn.is_floor else step_ms
        self._credit.account(used_ms, own=used_ms if turn.is_floor else 0.0)
        for priority in {s.request.priority for s in plan.parts}:
            if turn.key in self._turns[priority]:
                self._turns[priority].use(turn.key, step_ms)

    def forget(self, key: str) -> None:
        self._composers.pop(key, None)
        for turns in self._turns.values():
            turns.leave(key)

    def _chosen(self, priority: Priority, newcomers: frozenset[_AdapterKey]) -> _AdapterKey:
        turns, last = self._turns[priority], self._last
        first = turns.first
        if first == last or last not in turns or first in newcomers:
            return first
        turn_ms = min(_TURN_SWITCHES[priority] * self._switch_ms, self._longest_turn_ms[priority])
        return last if turns.lead(last, first) < turn_ms else first

    def _floor_turn(
        self,
        members: Mapping[_AdapterKey, Seq[Sequence]],
        capacity: StepCapacity,
        prices: Callable[[_AdapterKey], StepPrices],
    ) -> AdapterTurn | None:
        key = self._turns[Priority.BATCH].first
        if self._credit.amount <= prices(key).single_ms:
            return None
        plan = self._composer(key).compose(
            members[key], capacity, prices(key), has_newcomer=False, beside_interactive=True
        )
        cost_ms = self._floor_ms(prices(key).ms(plan))
        return AdapterTurn(key, plan, is_floor=True) if self._credit.pays_for(cost_ms) else None

    def _floor_ms(self, step_ms: float) -> float:
        """A step of batch work delays others by two switches of the adapter, too."""
        return step_ms + 2 * self._switch_ms

    def _composer(self, key: _AdapterKey) -> Composer:
        if key not in self._composers:
            self._composers[key] = Composer(self.options)
        return self._composers[key]


def members_of(running: Iterable[Sequence]) -> dict[_AdapterKey, list[Sequence]]:
    members: dict[_AdapterKey, list[Sequence]] = {}
    for sequence in running:
        members.setdefault(sequence.request.adapter, []).append(sequence)
    return members


def _having(members: Mapping[_AdapterKey, Seq[Sequence]], priority: Priority) -> list[_AdapterKey]:
    return [key for key, own in members.items() if any(s.request.priority is priority for s in own)]


_LEAST_MS = 10.0
"""Minimum slice: most of a shorter one would be start and end."""
_MOST_DISCARDS = 2
"""Maximum times that an unfinished encoding is discarded for better work."""


@dataclass(eq=False)
class EncodingTurns:
    """Encoder of one media item at a time, in a slice behind each step's tokens. Better work discards an
    unfinished batch item, because an encoder cannot pause."""

    options: StepOptions
    _current: Sequence | None = None
    _spent_ms: float = 0.0
    _row_ms: dict[str, float] = field(default_factory=dict)

    def encode(self, running: Seq[Sequence], step_ms: float) -> Encode | None:
        wanting = [sequence for sequence in running if sequence.has_to_encode]
        if not wanting:
            return None
        chosen, current = wanting[0], self._current
        if current in wanting and current is not chosen:
            is_as_urgent = current.request.priority is chosen.request.priority
            if is_as_urgent or current.num_discarded >= _MOST_DISCARDS:
                chosen = current
            else:
                current.num_discarded += 1
        if chosen is not current:
            self._spent_ms = 0.0
        self._current = chosen
        return Encode(chosen.slot, chosen.num_encoded, self._slice_ms(chosen, running, step_ms))

    def encoded(
        self, encode: Encode, step: Step, result: StepResult, running: Mapping[int, Sequence]
    ) -> list[SequenceAdvance]:
        sequence = running[encode.slot]
        self._spent_ms += result.encoding_ms
        if result.encoded:
            sequence.num_encoded = encode.placeholder + 1
            kind = sequence.request.item_of(encode.placeholder).kind
            row_ms = self._spent_ms / sequence.request.media[encode.placeholder].rows.num_rows
            if self._spent_ms > _LEAST_MS:  # cached rows take no time
                self._row_ms[kind] = (self._row_ms.get(kind, row_ms) + row_ms) / 2
            self._spent_ms, self._current = 0.0, None
        fault = result.faults.get(encode.slot)
        is_reported = any(span.slot == encode.slot for span in step.spans)
        return [] if fault is None or is_reported else [SequenceAdvance(sequence, (), (), fault=fault)]

    def price_ms(self, sequence: Sequence) -> float:
        is_running = sequence.status is SequenceStatus.RUNNING
        reused = 0 if is_running else len(sequence.tokens) - sequence.expected_pending
        request = sequence.request
        return sum(
            self._row_ms.get(request.media_items[one.item].kind, 0.0) * one.rows.num_rows
            for one in request.media[sequence.num_encoded :]
            if one.end > reused
        )

    @property
    def slice_ms(self) -> float:
        return max(_LEAST_MS, self.options.preempt_threshold_ms)

    def _slice_ms(self, chosen: Sequence, running: Seq[Sequence], step_ms: float) -> float:
        is_beside = any(s.request.priority is Priority.INTERACTIVE for s in running)
        if chosen.request.priority is Priority.INTERACTIVE or not is_beside:
            return self.slice_ms
        return max(_LEAST_MS, self.options.batch_floor * step_ms)
