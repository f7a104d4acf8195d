"""Who goes back to a new engine when, and who is to blame. Pure: an engine is a set of ids."""

from __future__ import annotations

import random

import pytest

from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.dispatch.death import DeathKind
from openai_cpu_server.dispatch.generation import Generation
from openai_cpu_server.dispatch.live import Live
from openai_cpu_server.dispatch.recovery import LiveRequests
from tests.scheduler.driver import request

FAULT, HANG, KILL = DeathKind.FAULT, DeathKind.HANG, DeathKind.KILL


class Engine:
    """What the client does with its bookkeeping, and an engine that computes all that it has at once."""

    def __init__(self, *ids: str) -> None:
        self.live = LiveRequests()
        self.has: list[str] = []
        for name in ids:
            self.add(name)

    def add(self, name: str) -> None:
        one = request(name)
        generation = Generation([one], cancel=lambda _: None, clock=lambda: 0.0)
        self.live.add(Live(one, generation, 0.0))
        self.send()

    def send(self) -> None:
        self.has += [live.request.id for live in self.live.due()]

    def step(self, *advanced: str) -> None:
        """A step of all, in which these (none given: all) gain a token."""
        self.live.computing(tuple(self.has))
        for name in advanced or tuple(self.has):
            self.live.advanced(TokenEvent(id=name, tokens=(5,), text="x"))
        self.send()

    def die_in_a_step(self, kind: DeathKind) -> list[str]:
        self.live.computing(tuple(self.has))
        return self.die(kind)

    def die(self, kind: DeathKind) -> list[str]:
        """Returns who is to blame. A new engine gets what is due."""
        guilty = [live.request.id for live in self.live.crashed(kind)]
        for name in guilty:
            self.live.remove(name)
        self.has = []
        self.send()
        return guilty


def test_after_a_fault_each_goes_back_alone_and_then_the_rest() -> None:
    engine = Engine("a", "b")
    engine.step()
    assert engine.die_in_a_step(FAULT) == []
    assert engine.has == ["b"]
    engine.add("new")
    assert engine.has == ["b"]
    engine.step()
    assert engine.has == ["b", "a"]
    engine.step("b")
    assert engine.has == ["b", "a"]
    engine.step("a")
    assert engine.has == ["b", "a", "new"]


def test_the_newcomer_is_tried_first_and_fails_at_the_second_crash() -> None:
    for kind in (FAULT, HANG):
        engine = Engine("a", "b")
        engine.step()
        engine.add("poison")
        assert engine.die_in_a_step(kind) == []
        assert engine.has == ["poison"]
        assert engine.die_in_a_step(kind) == ["poison"]
        engine.step()
        engine.step()
        assert engine.has == ["b", "a"]


def test_nobody_is_sentenced_for_another() -> None:
    """The poison is not the first on trial: who has passed is in the step too when it strikes again."""
    engine = Engine("poison", "a", "b")
    engine.step()
    engine.die_in_a_step(FAULT)
    engine.step("b")
    engine.step("a")
    assert engine.has == ["b", "a", "poison"]
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


@pytest.mark.parametrize("kind", [KILL, DeathKind.MEMORY])
def test_a_request_that_brings_the_memory_killer_every_time_fails_at_the_third(kind: DeathKind) -> None:
    engine = Engine("a", "b")
    engine.step()
    engine.add("hog")
    assert engine.die_in_a_step(kind) == []
    assert engine.has == ["hog"]
    assert engine.die_in_a_step(kind) == []
    assert engine.die_in_a_step(kind) == ["hog"]
    assert engine.has == ["a", "b"]


def test_a_token_between_clears() -> None:
    engine = Engine("a")
    for _ in range(5):
        assert engine.die_in_a_step(FAULT) == []
        engine.step()


def test_a_suspect_that_leaves_makes_room_for_the_next() -> None:
    engine = Engine("a", "b")
    engine.die_in_a_step(FAULT)
    assert engine.has == ["b"]
    engine.live.remove("b")
    engine.send()
    assert engine.has == ["b", "a"]


def test_a_hang_outside_of_steps_accuses_whom_the_engine_had() -> None:
    engine = Engine("a")
    assert engine.die(HANG) == []
    assert engine.die(HANG) == ["a"]


def test_the_engine_owes_nothing_while_all_are_held() -> None:
    engine = Engine()
    assert not engine.live.are_owed
    engine.add("a")
    assert engine.live.are_owed
    engine.live.crashed(FAULT)
    assert not engine.live.are_owed
