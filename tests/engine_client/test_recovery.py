"""Who goes back to a new engine when, and who is to blame. Pure: an engine is a set of ids."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.answers import GenerationAnswer
from openai_cpu_server.engine_client.culprits import OutsideRequests
from openai_cpu_server.engine_client.deaths import DeathKind
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests
from tests.scheduler.driver import request

FAULT, HANG, KILL = DeathKind.FAULT, DeathKind.HANG, DeathKind.KILL
INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


class Engine:
    """What the client does with its bookkeeping, and an engine that computes all that it has at once."""

    def __init__(self, *ids: str) -> None:
        self.live = AcceptedRequests()
        self.outside = OutsideRequests(self.live)
        self.has: list[str] = []
        for name in ids:
            self.add(name)

    def add(self, name: str, priority: Priority = INTERACTIVE) -> None:
        one = request(name, priority=priority)
        generation = GenerationAnswer([one], cancel=lambda _: None, clock=lambda: 0.0)
        live = AcceptedRequest(one, generation, 0.0)
        self.live.add(live)
        self.outside.add(live)
        self.send()

    def forget(self, name: str) -> None:
        self.live.remove(name)
        self.outside.remove(name)

    def send(self) -> None:
        self.has += [live.request.id for live in self.outside.due()]

    def step(self, *advanced: str) -> None:
        """A step of all, in which these (none given: all) gain a token."""
        self.outside.computing(tuple(self.has))
        self.advance(advanced or tuple(self.has))

    def advance(self, names: Iterable[str]) -> None:
        for name in names:
            live = self.live.get(name)
            assert live is not None
            self.outside.advanced(live)
        self.send()

    def die_in_a_step(self, kind: DeathKind) -> list[str]:
        self.outside.computing(tuple(self.has))
        return self.die(kind)

    def die(self, kind: DeathKind) -> list[str]:
        """Returns who is to blame. A new engine gets what is due."""
        self.verdict = self.outside.crashed(kind)
        guilty = [live.request.id for live in self.verdict.guilty]
        for name in guilty:
            self.forget(name)
        self.has = []
        self.send()
        return guilty


def test_after_a_fault_one_half_goes_back_and_who_was_not_there_comes_beside_the_other() -> None:
    engine = Engine(*"abcd")
    engine.step()
    assert engine.die_in_a_step(FAULT) == []
    assert engine.has == ["c", "d"]
    engine.add("new")
    assert engine.has == ["c", "d"]
    engine.step("d")
    assert engine.has == ["c", "d"]
    engine.step("c")
    assert engine.has == ["c", "d", "b", "new"]
    engine.step("b")
    assert engine.has == ["c", "d", "b", "new", "a"]


def test_interactive_suspects_go_before_batch_work_and_newcomers_do_not_wait_for_it() -> None:
    engine = Engine()
    for number in range(16):
        engine.add(f"b{number}", BATCH)
    engine.add("i")
    engine.step()
    engine.die_in_a_step(FAULT)
    assert engine.has == ["i"]
    engine.forget("i")
    engine.send()
    assert len(engine.has) == 1 + 8
    engine.add("b16", BATCH)
    assert engine.has[-1] != "b16"
    engine.add("new")
    assert engine.has[-1] == "new"


def test_who_is_killed_beside_a_trial_is_suspected_after_those_on_trial() -> None:
    engine = Engine(*"abcdefgh")
    engine.step()
    engine.die_in_a_step(FAULT)
    engine.step()
    engine.add("poison")
    assert engine.has == [*"efgh", "c", "d", "poison"]
    engine.die_in_a_step(FAULT)
    assert engine.has == ["d"]
    engine.step()
    engine.step("c")
    assert engine.has == ["d", "c", "poison"]
    assert engine.die_in_a_step(FAULT) == []
    assert engine.has == ["poison"]
    assert engine.die_in_a_step(FAULT) == ["poison"]
    assert sorted(engine.has) == list("abcdefgh")


def test_who_was_handled_when_the_engine_died_is_tried_alone_before_all_others() -> None:
    engine = Engine("a", "b")
    engine.step()
    engine.add("poison", BATCH)
    engine.outside.computing(("a", "b"))
    engine.outside.handling("poison")
    assert engine.die(FAULT) == []
    engine.add("new")
    assert engine.has == ["poison"]
    engine.outside.handling("poison")
    assert engine.die(FAULT) == ["poison"]
    assert engine.has == ["a", "b", "new"]


def test_who_was_only_handled_at_that_time_is_cleared_and_the_others_are_tried() -> None:
    engine = Engine("poison", "a")
    engine.step()
    engine.add("b")
    engine.outside.computing(("poison", "a"))
    engine.outside.handling("b")
    engine.die(FAULT)
    engine.step()
    engine.step("a")
    assert engine.has == ["b", "a", "poison"]
    engine.die_in_a_step(FAULT)
    assert engine.die_in_a_step(FAULT) == ["poison"]


def test_who_is_to_be_tried_alone_still_is_when_the_next_engine_dies_loading() -> None:
    engine = Engine("a", "b")
    engine.step()
    engine.add("poison", BATCH)
    engine.outside.computing(("a", "b"))
    engine.outside.handling("poison")
    engine.outside.crashed(FAULT)
    engine.outside.crashed(KILL)
    engine.has = []
    engine.add("new")
    assert engine.has == ["poison"]


def test_a_death_while_the_next_engine_loads_changes_nothing() -> None:
    engine = Engine(*"abcd")
    engine.step()
    engine.outside.computing(tuple(engine.has))
    engine.outside.crashed(FAULT)
    engine.outside.crashed(KILL)
    engine.has = []
    engine.send()
    assert engine.has == ["c", "d"]


@pytest.mark.parametrize(("kind", "deaths"), [(FAULT, 2), (HANG, 2), (KILL, 3), (DeathKind.MEMORY, 3)])
def test_the_newcomer_is_tried_first_and_fails(kind: DeathKind, deaths: int) -> None:
    engine = Engine("a", "b")
    engine.step()
    engine.add("poison")
    for _ in range(deaths - 1):
        assert engine.die_in_a_step(kind) == []
        assert engine.has == ["poison"]
    assert engine.die_in_a_step(kind) == ["poison"]
    assert engine.has == ["a", "b"]


def test_nobody_is_sentenced_for_another() -> None:
    """The poison is not the first on trial: who has passed is in the step too when it strikes again."""
    engine = Engine("poison", "a", "b")
    engine.step()
    engine.die_in_a_step(FAULT)
    assert engine.has == ["a", "b"]
    engine.step("b")
    engine.step("a")
    assert engine.has == ["a", "b", "poison"]
    assert engine.die_in_a_step(FAULT) == []
    assert engine.has == ["poison"]
    assert engine.die_in_a_step(FAULT) == ["poison"]


@pytest.mark.parametrize("kind", [KILL, DeathKind.MEMORY])
def test_kills_from_outside_accuse_nobody_who_had_made_progress(kind: DeathKind) -> None:
    engine = Engine("a", "b", "c")
    for _ in range(200):
        engine.step()
        assert engine.die_in_a_step(kind) == []
        assert engine.has == ["a", "b", "c"]


def test_random_kills_fail_nobody() -> None:
    chance = random.Random(7)
    engine = Engine(*"abcdefgh")
    for number in range(2000):
        for _ in range(chance.choice((0, 0, 1, 2, 5))):
            engine.step(*chance.sample(engine.has, chance.randint(1, len(engine.has))))
        if number % 3:
            engine.step(engine.has[0])  # never three kills in a row before whoever is alone gets a token
        assert (engine.die if chance.random() < 0.2 else engine.die_in_a_step)(KILL) == []
    assert len(engine.live) == 8


def test_a_token_between_clears() -> None:
    engine = Engine("a")
    for _ in range(5):
        assert engine.die_in_a_step(FAULT) == []
        engine.step()


def test_a_suspect_that_leaves_makes_room_for_the_next() -> None:
    engine = Engine("a", "b")
    engine.die_in_a_step(FAULT)
    assert engine.has == ["b"]
    engine.forget("b")
    engine.send()
    assert engine.has == ["b", "a"]


def test_a_hang_outside_of_steps_accuses_whom_the_engine_had() -> None:
    engine = Engine("a")
    assert engine.die(HANG) == []
    assert engine.die(HANG) == ["a"]


def test_the_engine_owes_nothing_while_all_are_held() -> None:
    engine = Engine()
    assert engine.outside.is_everybody
    engine.add("a")
    assert not engine.outside.is_everybody
    engine.outside.crashed(FAULT)
    assert engine.outside.is_everybody


CALLS = st.tuples(
    st.sampled_from([INTERACTIVE, BATCH]),
    st.one_of(st.none(), st.none(), st.integers(0, 2)),
    st.integers(0, 20),
)
"""Priority; None, or after how many tokens it kills; the round in which it comes."""


@given(
    calls=st.lists(CALLS, min_size=1, max_size=40), kind=st.sampled_from([FAULT, KILL]), chance=st.randoms()
)
def test_every_killer_fails_alone_and_soon(
    calls: list[tuple[Priority, int | None, int]], kind: DeathKind, chance: random.Random
) -> None:
    """Any set of killers among any requests; each step computes some of those that the engine has."""
    engine = Engine()
    tokens: Counter[str] = Counter()
    deadly = {f"r{i}": after for i, (_, after, _) in enumerate(calls) if after is not None}
    failed: list[str] = []
    num_deaths = num_counted = round_number = 0
    while round_number <= 20 or len(failed) < len(deadly) or len(engine.has) < len(engine.live):
        for i, (priority, _, comes) in enumerate(calls):
            if comes == round_number:
                engine.add(f"r{i}", priority)
        round_number += 1
        computed = [one for one in engine.has if chance.random() < 0.8]
        engine.outside.computing(tuple(computed))
        if any(tokens[one] >= deadly.get(one, math.inf) for one in computed):
            failed += engine.die(kind)
            num_deaths += 1
            num_counted += not engine.verdict.is_closer
        elif computed:
            engine.advance(computed)
            tokens.update(computed)
    assert sorted(failed) == sorted(deadly)
    bound = math.ceil(math.log2(len(calls))) + 5
    assert num_deaths <= bound * len(deadly)
    assert num_counted <= 5 * len(deadly)
