"""Shares and turns under any history; the tests use numbers only."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.fairness import Credit, FairQueue, FairTurns, NestedTurns, Path, alternating

Key = TypeVar("Key", str, int)
shares = st.sampled_from([0.05, 0.1, 0.25, 0.5])
amounts = st.integers(1, 100)


class TestCredit:
    def test_it_earns_its_share_and_pays_for_its_use(self) -> None:
        credit = Credit(0.1)
        credit.account(100, own=0)
        credit.account(50, own=12)
        assert credit.amount == pytest.approx(3)
        credit.lapse()
        credit.account(100, own=100)
        assert credit.amount == 0, "a gift does not become a debt"

    def test_it_saves_for_one_turn_or_up_to_its_limit(self) -> None:
        for most, amount in ((0, 20), (70, 70)):
            credit = Credit(0.5, most=most)
            assert not credit.pays_for(20)
            credit.account(1000, own=0)
            assert credit.amount == amount
            assert credit.pays_for(20)

    def test_it_is_due_after_enough_use_by_others(self) -> None:
        credit = Credit(0.25)
        for _ in range(400):  # sums of small amounts are enough
            credit.account(0.1, own=0)
        assert credit.due_in(15) == pytest.approx(20)
        assert credit.due_in(5) == 0
        assert Credit(0.0).due_in(5) == math.inf

    @given(shares, st.lists(st.tuples(amounts, amounts), max_size=200))
    def test_it_never_grants_more_than_the_share(self, share: float, turns: list[tuple[int, int]]) -> None:
        """Others use the resource all the time; own turns, of any price, start as soon as they are paid."""
        credit, used, own = Credit(share), 0.0, 0.0
        for others, price in turns:
            if credit.pays_for(price):
                credit.account(price, own=price)
                used, own = used + price, own + price
            credit.account(others, own=0)
            used += others
            assert own <= share * used + 1e-3
            assert 0 <= credit.amount <= price

    @given(shares, amounts, st.lists(amounts, min_size=1, max_size=300))
    def test_with_enough_savings_it_is_at_most_two_turns_behind_its_share(
        self, share: float, price: int, steps: list[int]
    ) -> None:
        """Save for two turns, because earnings beyond the limit are lost."""
        credit, used, own = Credit(share, most=2 * price), 0.0, 0.0
        for others in steps:
            if credit.pays_for(price):
                credit.account(price, own=price)
                used, own = used + price, own + price
            others_use = min(others, price)
            credit.account(others_use, own=0)
            used += others_use
            assert -1e-3 <= share * used - own <= 2 * price
            assert 0 <= credit.amount <= 2 * price


class TestFairTurns:
    def test_the_least_user_is_next_then_the_longest_waiting(self) -> None:
        turns = turns_of("a", "b", "c")
        for key, amount in (("a", 3), ("b", 1), ("c", 2)):
            turns.use(key, amount)
        assert (turns.order, turns.first, turns.lead("a", "b")) == (["b", "c", "a"], "b", 2)
        turns.use("b", 2)
        turns.use("c", 1)
        assert turns.order == ["a", "b", "c"]

    @pytest.mark.parametrize(("favours_newcomers", "order"), [(False, "bacd"), (True, "cdba")])
    def test_among_equals_newcomers_may_be_first(self, favours_newcomers: bool, order: str) -> None:
        turns: FairTurns[str] = FairTurns(favours_newcomers=favours_newcomers)
        for key in "ab":
            turns.join(key)
        turns.use("b", 1)
        turns.use("a", 1)
        for key in "cd":
            turns.join(key)
        assert "".join(turns.order) == order

    @pytest.mark.parametrize("is_alone", [False, True])
    def test_a_new_or_returning_key_has_no_savings(self, is_alone: bool) -> None:
        """Savings are lost even if the queue was empty in between."""
        turns = turns_of("a")
        for _ in range(2):
            turns.use("a", 100)
            turns.join("b")
            assert turns.lead("a", "b") == 0
            turns.leave("b")
        if is_alone:
            turns.use("a", 100)
            turns.leave("a")
        turns.join("b")
        turns.join("a")
        assert turns.lead("a", "b") == 0

    def test_usage_is_not_forgotten_while_others_wait(self) -> None:
        turns = turns_of("a", "b")
        turns.use("a", 100)
        turns.leave("a")
        turns.leave("a")
        turns.join("a")
        assert turns.lead("a", "b") == 100

    def test_turns_can_be_limited_to_some_keys_and_a_copy_is_independent(self) -> None:
        turns = turns_of("a", "b", "c")
        trial = turns.copy()
        trial.use("a", 5)
        trial.leave("c")
        assert trial.order == ["b", "a"]
        trial.only(["d", "b"])
        assert (trial.order, len(trial), "a" in trial) == (["b", "d"], 2, False)
        assert turns.order == ["a", "b", "c"]

    @given(st.integers(1, 6), st.lists(amounts, max_size=200))
    def test_keys_that_stay_are_at_most_one_turn_apart(self, number: int, used: list[int]) -> None:
        turns = turns_of(*range(number))
        for amount in used:
            turns.use(turns.first, amount)
            first, *_, last = [*turns.order, turns.order[-1]]
            assert turns.lead(last, first) <= max(used)

    @given(
        st.booleans(),
        st.lists(
            st.one_of(
                st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, 5)),
                st.tuples(st.just("use"), amounts),
            ),
            max_size=200,
        ),
    )
    def test_a_key_waits_for_at_most_two_turns_of_each_other_key(
        self, favours_newcomers: bool, history: list[tuple[str, int]]
    ) -> None:
        turns: FairTurns[int] = FairTurns(favours_newcomers=favours_newcomers)
        waited: Counter[int] = Counter()
        longest = max((amount for action, amount in history if action == "use"), default=0)
        for action, number in history:
            if action == "use" and len(turns):
                first = turns.first
                assert first == turns.order[0]
                turns.use(first, number)
                waited.update(dict.fromkeys(turns.order, number))
                del waited[first]
            elif action == "join":
                turns.join(number)
            elif action == "leave":
                turns.leave(number)
                del waited[number]
            assert all(ms <= 2 * 5 * longest for ms in waited.values())

    @given(st.lists(st.tuples(st.integers(0, 3), amounts), max_size=100))
    def test_a_key_that_leaves_and_returns_gets_no_more_than_one_that_stays(
        self, visits: list[tuple[int, int]]
    ) -> None:
        """A key leaves for a while after some of its turns; the other always stays."""
        turns, used = turns_of("stays", "returns"), Counter[str]()
        longest = max((amount for _, amount in visits), default=0)
        for rest, amount in visits:
            first = turns.first
            turns.use(first, amount)
            used[first] += amount
            if rest == 0 and "returns" in turns:
                turns.leave("returns")
            elif rest:
                turns.join("returns")
            assert used["returns"] <= used["stays"] + longest


class TestNestedTurns:
    def test_a_group_has_one_turn_however_many_members_it_has(self) -> None:
        turns = NestedTurns()
        for path in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "4")):
            turns.join(path)
        assert turns.order == [("a", "1"), ("b", "4"), ("a", "2"), ("a", "3")], "one small turn each"
        assert " ".join("".join(path) for path in take(turns, 6)) == "a1 b4 a2 b4 a3 b4"

    def test_a_group_leaves_with_its_last_member(self) -> None:
        turns = NestedTurns()
        turns.join(("a", "1"))
        turns.join(("a", "2"))
        turns.leave(("a", "1"))
        assert turns.first == ("a", "2")
        turns.leave(("a", "2"))
        assert not turns

    @given(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.text(max_size=3)), unique=True),
        st.lists(amounts, max_size=60),
    )
    def test_a_trial_on_a_copy_changes_nothing(
        self, paths: list[tuple[str, str, str]], used: list[int]
    ) -> None:
        turns, same = NestedTurns(), NestedTurns()
        for path in paths:
            turns.join(path)
            same.join(path)
        trial = turns.copy()
        for amount in used:
            if trial:
                path = trial.first
                trial.use(path, amount)
                if amount % 3 == 0:
                    trial.leave(path)
        assert turns.order == same.order
        assert len(take(turns, 40)) == (40 if paths else 0)

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=3)), unique=True, min_size=1), amounts)
    def test_groups_get_the_same_whatever_their_members(
        self, paths: list[tuple[str, str]], amount: int
    ) -> None:
        turns = NestedTurns()
        for path in paths:
            turns.join(path)
        totals: Counter[str] = Counter()
        for group, _ in take(turns, 90, amount):
            totals[group] += amount
        assert max(totals.values()) - min(totals.values()) <= amount


def test_alternating_reads_no_more_items_than_are_taken() -> None:
    reads: list[int] = []

    def recorded(numbers: list[int]) -> list[int]:
        reads.extend(numbers)
        return numbers

    queues = [(n for numbers in ([1], [4], [7]) for n in recorded(numbers)), iter([2]), iter([3, 6])]
    assert list(islice(alternating(queues), 3)) == [1, 2, 3]
    assert reads == [1]
    assert list(alternating([[1, 4], [2], [3, 5]])) == [1, 2, 3, 4, 5]


def turns_of(*keys: Key) -> FairTurns[Key]:
    turns: FairTurns[Key] = FairTurns(favours_newcomers=False)
    for key in keys:
        turns.join(key)
    return turns


def take(turns: NestedTurns, number: int, amount: int = 1) -> list[Path]:
    """Take this many turns, and return their paths."""
    found = []
    for _ in range(number if turns else 0):
        found.append(turns.first)
        turns.use(found[-1], amount)
    return found


ANN, BOB = ("ann",), ("bob",)


class TestFairQueue:
    def test_a_caller_at_its_limit_lets_others_go_first(self) -> None:
        queue = FairQueue[str](most=1)
        for caller, ticket in ((ANN, "a"), (ANN, "b"), (BOB, "c")):
            queue.add(caller, ticket)
        assert [queue.take(), queue.take(), queue.take()] == ["a", "c", None]
        assert (len(queue), queue.num_held) == (1, 2)
        queue.give_back(ANN, 5.0)
        assert queue.take() == "b"

    def test_the_caller_that_has_used_least_is_next(self) -> None:
        queue = FairQueue[str](most=9)
        queue.add(ANN, "a")
        assert queue.take() == "a"
        queue.add(ANN, "b")
        queue.add(BOB, "c")
        queue.add(BOB, "cancelled")
        queue.remove(BOB, "cancelled")
        queue.give_back(ANN, 10.0)
        assert [queue.take(), queue.take(), queue.take()] == ["c", "b", None]

    @given(
        st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), amounts), max_size=60), st.integers(1, 3)
    )
    def test_each_ticket_is_taken_once_and_no_caller_exceeds_its_limit(
        self, story: list[tuple[str, bool, int]], most: int
    ) -> None:
        queue, held, taken = FairQueue[tuple[str, int]](most), Counter[str](), list[tuple[str, int]]()
        added = [(name, number) for number, (name, _, _) in enumerate(story)]
        for ticket, (name, ends, used) in zip(added, story, strict=True):
            queue.add((name,), ticket)
            if (found := queue.take()) is not None:
                held[found[0]] += 1
                taken.append(found)
            assert max(held.values()) <= most
            if ends and held[name]:
                held[name] -= 1
                queue.give_back((name,), used)
        for name in held.elements():
            queue.give_back((name,), 1)
        while (found := queue.take()) is not None:
            taken.append(found)
            queue.give_back((found[0],), 1)
        assert sorted(taken) == sorted(added)
