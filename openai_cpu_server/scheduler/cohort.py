"""Chooses whose step is next, where sequences compute with different adapters: a step has one of them. And
whose media item is encoded behind it.

A cohort is all running sequences of one adapter; the base is the cohort of those without one. Each has a
composer of its own, which fills its steps as if it were alone, and knows nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import Encode, Step, StepResult
from openai_cpu_server.fairness import Credit, FairTurns
from openai_cpu_server.scheduler.compose import Composer, StepOptions
from openai_cpu_server.scheduler.plan import StepPlan, StepPrices, StepRoom
from openai_cpu_server.scheduler.sequence import Sequence, SequenceStatus
from openai_cpu_server.scheduler.spans import SequenceAdvance

Key = str | None
"""An adapter's key; None: the base."""

_TURN_SWITCHES = {Priority.INTERACTIVE: 10, Priority.BATCH: 50}
"""A turn lasts as long as so many switches take, and at most as long as a step may.

So switching costs a tenth of the time where somebody waits for each token, and a fiftieth where nobody does.
"""


class CohortTurn(NamedTuple):
    """The next step, as it is planned."""

    key: Key
    plan: StepPlan
    is_floor: bool = False
    """It is batch work's, beside interactive work of other cohorts."""


class Cohorts:
    """Interactive work goes first; within a class cohorts take turns by the time that they have used.

    Batch work in a cohort that has interactive work too is that cohort's composer's concern. All other batch
    work earns `batch_floor` of the time, and spends it on steps of its own: no longer than those of
    interactive work, and never two in a row.
    """

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self._longest_turn_ms = {
            Priority.INTERACTIVE: options.pace_ms,
            Priority.BATCH: options.batch_stall_ms,
        }
        """So long a turn goes on at most for the sake of fewer switches."""
        self._composers: dict[Key, Composer] = {}
        self._turns = {priority: FairTurns[Key](favours_newcomers=True) for priority in Priority}
        self._last: Key = None
        self._switch_ms = 0.0
        self._credit = Credit(options.batch_floor, most=options.pace_ms)
        """What the batch work of waiting cohorts has earned, in milliseconds."""
        self._was_floor = False
        """Whether the last step was one that they have paid for so."""

    def compose(
        self,
        running: Seq[Sequence],
        room: StepRoom,
        prices: Callable[[Key], StepPrices],
        *,
        newcomers: frozenset[Key],
        switch_ms: float,
        beside_interactive: bool = False,
    ) -> CohortTurn:
        """The next step for the running sequences, which come in the policy's order.

        `newcomers`: cohorts in which an interactive sequence got a slot at once, since their last step.
        `switch_ms`: what it takes to compute with another adapter than the last step did.
        `beside_interactive`: as for `Composer.compose`.
        """
        members = members_of(running)
        self._switch_ms = switch_ms
        urgent = _having(members, Priority.INTERACTIVE)
        others = [key for key in _having(members, Priority.BATCH) if key not in urgent]
        self._turns[Priority.INTERACTIVE].only(urgent)
        self._turns[Priority.BATCH].only(others)
        if not others or not urgent:
            self._credit.lapse()
        elif not self._was_floor and (floor := self._floor_turn(members, room, prices)) is not None:
            return floor
        key = self._chosen(Priority.INTERACTIVE if urgent else Priority.BATCH, newcomers) if members else None
        plan = self._composer(key).compose(
            members.get(key, ()),
            room,
            prices(key),
            has_newcomer=key in newcomers,
            beside_interactive=beside_interactive or any(other != key for other in urgent),
        )
        return CohortTurn(key, plan)

    def account(self, turn: CohortTurn, plan: StepPlan, step_ms: float, running: Iterable[Sequence]) -> None:
        """Book what a step uses whose tokens are final."""
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
        """The adapter is gone."""
        self._composers.pop(key, None)
        for turns in self._turns.values():
            turns.leave(key)

    def _chosen(self, priority: Priority, newcomers: frozenset[Key]) -> Key:
        """Who has used least. The last one goes on for as long as a turn lasts, unless a newcomer waits."""
        turns, last = self._turns[priority], self._last
        first = turns.first
        if first == last or last not in turns or first in newcomers:
            return first
        turn_ms = min(_TURN_SWITCHES[priority] * self._switch_ms, self._longest_turn_ms[priority])
        return last if turns.lead(last, first) < turn_ms else first

    def _floor_turn(
        self,
        members: Mapping[Key, Seq[Sequence]],
        room: StepRoom,
        prices: Callable[[Key], StepPrices],
    ) -> CohortTurn | None:
        """A step of batch work of the cohorts without interactive work, if its credit pays for one."""
        key = self._turns[Priority.BATCH].first
        if self._credit.amount <= prices(key).single_ms:
            return None
        plan = self._composer(key).compose(
            members[key], room, prices(key), has_newcomer=False, beside_interactive=True
        )
        cost_ms = self._floor_ms(prices(key).ms(plan))
        return CohortTurn(key, plan, is_floor=True) if self._credit.pays_for(cost_ms) else None

    def _floor_ms(self, step_ms: float) -> float:
        """What a step of batch work costs those who wait: they switch to it and back."""
        return step_ms + 2 * self._switch_ms

    def _composer(self, key: Key) -> Composer:
        if key not in self._composers:
            self._composers[key] = Composer(self._options)
        return self._composers[key]


def members_of(running: Iterable[Sequence]) -> dict[Key, list[Sequence]]:
    """The cohorts, each in the order of `running`."""
    members: dict[Key, list[Sequence]] = {}
    for sequence in running:
        members.setdefault(sequence.request.adapter, []).append(sequence)
    return members


def _having(members: Mapping[Key, Seq[Sequence]], priority: Priority) -> list[Key]:
    return [key for key, own in members.items() if any(s.request.priority is priority for s in own)]


_LEAST_MS = 10.0
"""Less at a time would go into beginnings and ends."""
_MOST_GIVEN_UP = 2
"""What was begun is given up for better work so often; then it is encoded to its end."""


class EncodingTurns:
    """Encodes one media item at a time, a slice behind the tokens of each step.

    The first in order goes first, so interactive ones before batch ones: what was begun of those is given up,
    for an encoder keeps nothing half done. A slice is as long as an interactive newcomer may wait for batch
    work; of a batch item beside interactive work it is the share that batch work has of the time.
    """

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self._current: Sequence | None = None
        """Whose item was encoded last, if not to its end."""
        self._spent_ms = 0.0
        """On that one."""
        self._row_ms: dict[str, float] = {}
        """What a row took of those of a kind that were encoded last."""

    def encode(self, running: Seq[Sequence], step_ms: float) -> Encode | None:
        """What to encode behind a step of so many milliseconds. `running`: in the policy's order."""
        wanting = [sequence for sequence in running if sequence.has_to_encode]
        if not wanting:
            return None
        chosen, current = wanting[0], self._current
        if current in wanting and current is not chosen:
            if self._stays(current, chosen):
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
        """Take over what a step has encoded."""
        sequence = running[encode.slot]
        self._spent_ms += result.encoding_ms
        if result.encoded:
            sequence.num_encoded = encode.medium + 1
            request = sequence.request
            self._learn(request.item_of(encode.medium).kind, request.media[encode.medium].rows.num_rows)
            self._current = None
        fault = result.faults.get(encode.slot)
        is_told = any(span.slot == encode.slot for span in step.spans)
        return [] if fault is None or is_told else [SequenceAdvance(sequence, (), (), fault=fault)]

    def price_ms(self, sequence: Sequence) -> float:
        """What encoding is expected to take for it, alone. One that waits will share what it can."""
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
        """Of what somebody waits for, behind each step."""
        return max(_LEAST_MS, self._options.preempt_threshold_ms)

    def _learn(self, kind: str, num_rows: int) -> None:
        """From one that was encoded to its end. Rows that are kept cost nothing, and tell nothing."""
        row_ms = self._spent_ms / num_rows
        if self._spent_ms > _LEAST_MS:
            self._row_ms[kind] = (self._row_ms.get(kind, row_ms) + row_ms) / 2
        self._spent_ms = 0.0

    def _stays(self, current: Sequence, better: Sequence) -> bool:
        if current.request.priority is better.request.priority:
            return True
        return current.num_given_up >= _MOST_GIVEN_UP

    def _slice_ms(self, chosen: Sequence, running: Seq[Sequence], step_ms: float) -> float:
        options = self._options
        is_beside = any(s.request.priority is Priority.INTERACTIVE for s in running)
        if chosen.request.priority is Priority.INTERACTIVE or not is_beside:
            return self.slice_ms
        return max(_LEAST_MS, options.batch_floor * step_ms)
