"""Order of turns where several engines share the cores. The test sets the time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_cpu_server.contract.messages import CpuToken, ShortenCpuToken
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.shared_cores import (
    BATCH_TURN_S,
    INTERACTIVE_TURN_S,
    LONGEST_COURTESY_S,
    CpuTokenQueue,
    Decision,
)

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE


@dataclass
class Machine:
    """Obedient engines: each computes steps of its own length while it holds the turn."""

    floor: float = 0.1
    now_s: float = 0.0
    step_s: dict[str, float] = field(default_factory=dict)
    work: dict[str, Priority | None] = field(default_factory=dict)
    turns: CpuTokenQueue = field(init=False)
    until_s: float | None = None  # time for the holder to give the turn back; None without a limit
    log: list[tuple[str, float]] = field(default_factory=list)  # engine and end of each step

    def __post_init__(self) -> None:
        self.turns = CpuTokenQueue(batch_floor=self.floor)

    def join(self, name: str, work: Priority | None, step_s: float = 0.1) -> Decision | None:
        self.step_s[name] = step_s
        self.turns.join(name, self.now_s)
        return self.wants(name, work)

    def wants(self, name: str, work: Priority | None) -> Decision | None:
        self.work[name] = work
        self.turns.wants(name, work, self.now_s)
        return self.act()

    def act(self) -> Decision | None:
        self.decision = decision = self.turns.decide(self.now_s)
        match decision:
            case Decision(command=CpuToken(limit_ms=limit_ms)):
                self.until_s = None if limit_ms is None else self.now_s + limit_ms / 1000
            case Decision(command=ShortenCpuToken(after_ms=after_ms)):
                self.until_s = self.now_s + after_ms / 1000
        return decision

    def step(self) -> str | None:
        """Compute a step of the holder, which gives the turn back if that is due. Return its name."""
        name = self.turns.holder
        if name is None:
            return None
        self.now_s += self.step_s[name]
        self.log.append((name, self.now_s))
        if self.work[name] is None or (self.until_s is not None and self.now_s >= self.until_s):
            self.turns.returned(name, self.work[name], self.now_s)
            self.act()
        return name

    def run(self, seconds: float) -> list[str]:
        end_s, before = self.now_s + seconds, len(self.log)
        while self.now_s < end_s and self.step() is not None:
            pass
        return [name for name, _ in self.log[before:]]

    def gets_a_turn(self, name: str, within_s: float) -> bool:
        end_s = self.now_s + within_s
        while self.turns.holder != name and self.now_s < end_s:
            self.step()
        return self.turns.holder == name

    def share(self, name: str, work: Priority) -> float:
        return self.turns.used_s(name, work, self.now_s) / self.now_s


def test_an_interactive_newcomer_interrupts_batch_work_once() -> None:
    machine = Machine()
    machine.join("a", BATCH)
    assert machine.join("b", INTERACTIVE) == Decision("a", ShortenCpuToken(interrupts=True))
    assert machine.join("c", INTERACTIVE) is None
    machine.step()
    assert machine.turns.holder == "b"


def test_work_of_the_same_class_is_not_interrupted_nor_batch_work_that_has_become_interactive() -> None:
    for work, turn_s in ((INTERACTIVE, INTERACTIVE_TURN_S), (BATCH, BATCH_TURN_S)):
        machine = Machine()
        machine.join("a", work)
        assert machine.join("b", work) == Decision("a", ShortenCpuToken(after_ms=1000 * turn_s))
    machine = Machine()
    machine.join("a", BATCH)
    machine.wants("a", INTERACTIVE)
    decision = machine.join("b", INTERACTIVE)
    assert isinstance(decision.command, ShortenCpuToken)
    assert not decision.command.interrupts


def test_a_holder_without_work_gives_the_turn_back_and_gets_no_other() -> None:
    machine = Machine()
    machine.join("a", BATCH)
    machine.turns.wants("a", None, machine.now_s)
    assert machine.join("b", INTERACTIVE) is None
    machine.turns.returned("a", None, machine.now_s)
    assert machine.act() == Decision("b", CpuToken())
    machine.turns.returned("b", None, machine.now_s)
    assert not machine.turns.is_waiting("b")
    assert machine.act() is None


@pytest.mark.parametrize(
    ("work", "names", "step_s", "seconds", "turns"),
    [
        (INTERACTIVE, "abc", 0.1, 1.2, "abcabcabcabc"),
        (INTERACTIVE, "ab", 0.004, 0.079, "aaaaabbbbbaaaaabbbbb"),
        (BATCH, "ab", 0.25, 3, "aaaabbbbaaaa"),
    ],
    ids=["step by step", "short steps share a turn", "batch work takes longer turns"],
)
def test_turns_of_one_class(work: Priority, names: str, step_s: float, seconds: float, turns: str) -> None:
    machine = Machine()
    for name in names:
        machine.join(name, work, step_s)
    assert "".join(machine.run(seconds)) == turns


@pytest.mark.parametrize(("floor", "names"), [(0.1, "b"), (0.25, "b"), (0.1, "bc")])
def test_batch_work_keeps_its_share_together_beside_endless_interactive_work(
    floor: float, names: str
) -> None:
    machine = Machine(floor=floor)
    machine.join("a", INTERACTIVE, step_s=0.03)
    for name in names:
        machine.join(name, BATCH, step_s=0.13)
    machine.run(200)
    for name in names:
        assert machine.share(name, BATCH) == pytest.approx(floor / len(names), abs=0.02)


def test_without_a_share_batch_work_waits() -> None:
    machine = Machine(floor=0.0)
    machine.join("a", INTERACTIVE)
    machine.join("b", BATCH)
    assert set(machine.run(100)) == {"a"}
    machine.wants("a", None)
    machine.step()
    assert machine.turns.holder == "b"


def test_the_share_is_one_step_beside_interactive_work_that_is_not_interrupted() -> None:
    machine = Machine()
    machine.join("a", INTERACTIVE)
    machine.join("b", BATCH)
    while machine.turns.holder == "a":
        machine.step()
    assert machine.decision == Decision("b", CpuToken(limit_ms=0.0, beside_interactive=True))
    assert machine.join("c", INTERACTIVE) is None
    machine.step()
    assert machine.turns.holder == "c"


def due_beside_a_newcomer() -> Machine:
    machine = Machine()
    machine.join("a", INTERACTIVE, step_s=0.5)
    machine.join("b", BATCH)
    machine.join("c", None)
    machine.step()
    machine.step()
    machine.wants("c", INTERACTIVE)
    return machine


def test_the_share_never_comes_right_before_a_newcomer() -> None:
    machine = due_beside_a_newcomer()
    assert machine.run(0.6)[:3] == ["a", "c"]
    assert machine.turns.holder == "b"


def test_newcomers_without_end_do_not_lock_batch_work_out() -> None:
    machine = due_beside_a_newcomer()
    began_s, num = machine.now_s, 0
    while machine.turns.holder != "b":
        num += 1
        machine.join(f"n{num}", INTERACTIVE)
        machine.step()
    assert machine.now_s - began_s <= LONGEST_COURTESY_S + 1.0


def test_a_holder_is_awaited_when_another_wants_the_turn() -> None:
    machine = Machine()
    machine.join("a", BATCH)
    machine.join("b", None)
    assert not machine.turns.is_awaited("a")
    machine.wants("b", BATCH)
    assert machine.turns.is_awaited("a")
    assert machine.turns.is_waiting("b")
    assert not machine.turns.is_awaited("b")
    assert not machine.turns.is_waiting("a")


def test_a_dead_engine_does_not_hold_the_turn() -> None:
    machine = Machine()
    machine.join("a", BATCH)
    machine.join("b", BATCH)
    machine.turns.leave("a", machine.now_s)
    assert machine.act() == Decision("b", CpuToken())
    machine.turns.leave("b", machine.now_s)
    assert machine.act() is None
    assert machine.turns.holder is None


NAMES = "abcd"
works = st.sampled_from([None, BATCH, INTERACTIVE])
events = st.one_of(
    st.tuples(st.just("wants"), st.sampled_from(NAMES), works),
    st.tuples(st.just("dies"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("steps"), st.integers(1, 40), st.none()),
)
LONGEST_STEP_S = 0.8


@settings(deadline=None)
@given(
    history=st.lists(events, max_size=60),
    step_s=st.lists(st.floats(0.005, LONGEST_STEP_S), min_size=4, max_size=4),
)
def test_every_engine_that_wants_the_turn_gets_it_after_any_history(
    history: list[tuple[str, object, Priority | None]], step_s: list[float]
) -> None:
    machine = Machine()
    for name, seconds in zip(NAMES, step_s, strict=True):
        machine.join(name, None, seconds)
    for event, about, work in history:
        if isinstance(about, int):
            for _ in range(about):
                machine.step()
        elif event == "dies":
            machine.turns.leave(str(about), machine.now_s)
            machine.join(str(about), None, machine.step_s[str(about)])
        else:
            machine.wants(str(about), work)
        assert machine.turns.holder is not None or not any(work is not None for work in machine.work.values())
    for name in NAMES:
        waiting = machine.work[name]
        if waiting is None:
            continue
        bound_s = 4 * LONGEST_STEP_S
        if waiting is BATCH:  # up to three others save for a step and take their longer turns before
            bound_s = 4 * (LONGEST_STEP_S / 0.1 + LONGEST_COURTESY_S + BATCH_TURN_S + 4 * LONGEST_STEP_S)
        assert machine.gets_a_turn(name, bound_s), f"{name} starves"
