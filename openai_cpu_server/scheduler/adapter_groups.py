"""Choice of the adapter group whose step is next, because all sequences of a step have the same adapter; and
of the media item that is encoded behind it.

An adapter group is all running sequences of one adapter, or of the base model. Each has a composer of its
own, which fills its steps regardless of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import Encode, Step, StepResult
from openai_cpu_server.fairness import Credit, FairTurns
from openai_cpu_server.scheduler.compose import Composer, StepOptions
from openai_cpu_server.scheduler.plan import StepCapacity, StepPlan, StepPrices
from openai_cpu_server.scheduler.sequence import Sequence, SequenceAdvance, SequenceStatus

Key = str | None
"""Key of an adapter, or None for the base model."""

_TURN_SWITCHES = {Priority.INTERACTIVE: 10, Priority.BATCH: 50}
"""Duration of a turn in switches of the adapter, limited by the maximum time of a step. So switching costs
a tenth of the time if a client waits for each token, and a fiftieth otherwise."""


class AdapterTurn(NamedTuple):
    key: Key
    plan: StepPlan
    is_floor: bool = False
    """Batch work beside interactive work of other groups."""


@dataclass(eq=False)
class AdapterGroups:
    """Interactive work goes first; within a priority, groups take turns by their used time.

    The composer of a group with interactive work also schedules its batch work. All other batch work earns
    `batch_floor` of the time and spends it on steps of its own. Such steps are as short as those of
    interactive work, and never two in a row.
    """

    options: StepOptions
    _composers: dict[Key, Composer] = field(default_factory=dict)
    _last: Key = None
    _switch_ms: float = 0.0
    _was_floor: bool = False

    def __post_init__(self) -> None:
        self._longest_turn_ms = {
            Priority.INTERACTIVE: self.options.pace_ms,
            Priority.BATCH: self.options.batch_stall_ms,
        }
        """Maximum duration of a turn for the sake of fewer switches."""
        self._turns = {priority: FairTurns[Key](favours_newcomers=True) for priority in Priority}
        self._credit = Credit(self.options.batch_floor, most=self.options.pace_ms)

    def compose(
        self,
        running: Seq[Sequence],
        capacity: StepCapacity,
        prices: Callable[[Key], StepPrices],
        *,
        newcomers: frozenset[Key],
        switch_ms: float,
        beside_interactive: bool = False,
    ) -> AdapterTurn:
        """`newcomers`: groups in which an interactive sequence got a slot at once since their last step."""
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

    def _chosen(self, priority: Priority, newcomers: frozenset[Key]) -> Key:
        turns, last = self._turns[priority], self._last
        first = turns.first
        if first == last or last not in turns or first in newcomers:
            return first
        turn_ms = min(_TURN_SWITCHES[priority] * self._switch_ms, self._longest_turn_ms[priority])
        return last if turns.lead(last, first) < turn_ms else first

    def _floor_turn(
        self,
        members: Mapping[Key, Seq[Sequence]],
        capacity: StepCapacity,
        prices: Callable[[Key], StepPrices],
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

    def _composer(self, key: Key) -> Composer:
        if key not in self._composers:
            self._composers[key] = Composer(self.options)
        return self._composers[key]


def members_of(running: Iterable[Sequence]) -> dict[Key, list[Sequence]]:
    members: dict[Key, list[Sequence]] = {}
    for sequence in running:
        members.setdefault(sequence.request.adapter, []).append(sequence)
    return members


def _having(members: Mapping[Key, Seq[Sequence]], priority: Priority) -> list[Key]:
    return [key for key, own in members.items() if any(s.request.priority is priority for s in own)]


_LEAST_MS = 10.0
"""Minimum slice: most of a shorter one would be start and end."""
_MOST_GIVEN_UP = 2
"""Maximum times that an unfinished encoding is discarded for better work; then it is completed."""


class EncodingTurns:
    """Encoder of one media item at a time, in a slice behind the tokens of each step.

    The first item in order goes first, so interactive ones before batch ones. An unfinished batch item is
    then discarded, because an encoder cannot pause. A slice is as long as a new interactive request may wait
    for batch work. For a batch item beside interactive work it is the share of batch work.
    """

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self._current: Sequence | None = None
        """Sequence whose item is unfinished."""
        self._spent_ms = 0.0
        self._row_ms: dict[str, float] = {}
        """Recent time per row, by kind of media."""

    def encode(self, running: Seq[Sequence], step_ms: float) -> Encode | None:
        wanting = [sequence for sequence in running if sequence.has_to_encode]
        if not wanting:
            return None
        chosen, current = wanting[0], self._current
        if current in wanting and current is not chosen:
            is_as_urgent = current.request.priority is chosen.request.priority
            if is_as_urgent or current.num_given_up >= _MOST_GIVEN_UP:
                chosen = current
            else:
                current.num_given_up += 1
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
        is_told = any(span.slot == encode.slot for span in step.spans)
        return [] if fault is None or is_told else [SequenceAdvance(sequence, (), (), fault=fault)]

    def price_ms(self, sequence: Sequence) -> float:
        """Estimate the encoding time of a sequence alone. A waiting sequence will share what it can."""
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
        """Time behind each step for an item that a client waits for."""
        return max(_LEAST_MS, self._options.preempt_threshold_ms)

    def _slice_ms(self, chosen: Sequence, running: Seq[Sequence], step_ms: float) -> float:
        options = self._options
        is_beside = any(s.request.priority is Priority.INTERACTIVE for s in running)
        if chosen.request.priority is Priority.INTERACTIVE or not is_beside:
            return self.slice_ms
        return max(_LEAST_MS, options.batch_floor * step_ms)
