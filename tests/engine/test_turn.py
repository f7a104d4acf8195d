"""The engine's side of the turn and of its steps, on our own clocks: when it may compute, and how long."""

from __future__ import annotations

import threading

import pytest

from openai_cpu_server.contract.messages import ALONE, EngineWants, GrantTurn, Sharing, ShortenTurn, TurnBack
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine.base import StepTimer
from openai_cpu_server.engine.turn import PIECE_S, EngineTurn, SharedTurn
from tests.waiting import DEADLINE_S

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE
LOADING = EngineWants(work=BATCH, is_loading=True)


class Client:
    """Hears what the engine says."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.heard: list[EngineWants | TurnBack] = []
        self.wishes_to_load = threading.Semaphore(0)
        self.num_woken = 0
        self.turn = SharedTurn(self._hear, wake=self._woken, clock=lambda: self.now_s)

    def _hear(self, message: EngineWants | TurnBack) -> None:
        self.heard.append(message)
        if message in (LOADING, TurnBack(wants=LOADING)):
            self.wishes_to_load.release()

    def _woken(self) -> None:
        self.num_woken += 1

    def told(self) -> list[EngineWants | TurnBack]:
        told = list(self.heard)
        self.heard.clear()
        return told


def holding(work: Priority = BATCH, limit_ms: float | None = None) -> Client:
    client = Client()
    client.turn.settle(work)
    client.turn.granted(GrantTurn(limit_ms=limit_ms))
    client.told()
    return client


def test_an_engine_alone_may_always_compute() -> None:
    turn = EngineTurn()
    turn.settle(BATCH)
    assert turn.is_held
    assert not turn.is_wanted
    assert turn.sharing == ALONE


def test_what_it_wants_is_told_when_that_changes() -> None:
    client = Client()
    for work in (None, BATCH, BATCH, INTERACTIVE, None):
        client.turn.settle(work)
    assert client.told() == [EngineWants(work=BATCH), EngineWants(work=INTERACTIVE), EngineWants()]
    assert not client.turn.is_held


def test_the_turn_is_kept_as_long_as_there_is_work_and_nobody_wants_it() -> None:
    client = holding()
    assert client.num_woken == 1
    for _ in range(3):
        client.now_s += 100
        client.turn.computed()
        client.turn.settle(BATCH)
    assert client.turn.is_held
    client.turn.settle(None)
    assert client.told() == [TurnBack(wants=EngineWants())]
    assert not client.turn.is_held


def test_a_turn_is_for_one_step_at_least() -> None:
    client = holding(limit_ms=0)
    client.turn.settle(BATCH)
    assert client.turn.is_held
    client.turn.computed()
    client.turn.settle(BATCH)
    assert client.told() == [TurnBack(wants=EngineWants(work=BATCH))]


def test_a_recall_sets_a_new_limit() -> None:
    client = holding()
    client.turn.computed()
    client.turn.recalled(ShortenTurn(after_ms=500))
    client.turn.settle(BATCH)
    assert client.turn.is_held
    client.now_s += 0.5
    assert client.turn.is_wanted
    client.turn.settle(BATCH)
    assert not client.turn.is_held


def test_a_recall_that_comes_too_late_is_no_matter() -> None:
    client = holding()
    client.turn.settle(None)
    client.turn.recalled(ShortenTurn())
    client.turn.settle(BATCH)
    client.turn.granted(GrantTurn(beside_interactive=True))
    assert client.turn.sharing == Sharing(beside_interactive=True)
    client.turn.computed()
    client.turn.settle(BATCH)
    assert client.turn.is_held


def test_a_turn_that_comes_when_nothing_is_wanted_any_more_goes_back() -> None:
    client = Client()
    client.turn.settle(BATCH)
    client.turn.settle(None)
    client.turn.granted(GrantTurn())
    client.turn.settle(None)
    assert client.told() == [EngineWants(work=BATCH), EngineWants(), TurnBack(wants=EngineWants())]


def test_estimates_grow_with_the_time_that_others_compute() -> None:
    client = Client()
    for _ in range(300):
        client.turn.settle(INTERACTIVE)
        client.now_s += 0.1
        client.turn.granted(GrantTurn(limit_ms=0))
        client.turn.settle(INTERACTIVE)
        client.now_s += 0.05
        client.turn.computed()
    assert client.turn.sharing.slowdown == pytest.approx(3, rel=0.05)
    client.turn.granted(GrantTurn())
    for _ in range(300):
        client.now_s += 0.1
        client.turn.settle(INTERACTIVE)
    assert client.turn.sharing.slowdown == pytest.approx(1, rel=0.05)


def test_a_load_is_cut_into_pieces() -> None:
    client = Client()

    def grant() -> None:
        for _ in range(3):
            assert client.wishes_to_load.acquire(timeout=DEADLINE_S)
            client.turn.granted(GrantTurn())

    reader = threading.Thread(target=grant)
    reader.start()
    for _ in range(6):
        client.turn.load_on()
        client.now_s += 0.5 * PIECE_S
    reader.join()
    assert client.told() == [LOADING, TurnBack(wants=LOADING), TurnBack(wants=LOADING)]


def test_a_load_ends_when_the_client_is_gone() -> None:
    client = Client()
    client.turn.close()
    with pytest.raises(ConnectionError):
        client.turn.load_on()


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_step_can_be_thrown_away_while_it_has_long_left_and_never_twice_in_a_row() -> None:
    clock = Clock()
    timer = StepTimer(clock, clock, preempt_threshold_s=0.1)
    assert not timer.is_interruptible
    timer.begin(1000.0, may_interrupt=True)
    assert timer.is_interruptible
    clock.now_s += 0.95
    assert not timer.is_interruptible
    clock.now_s -= 0.5
    timer.end(is_interrupted=True)
    assert not timer.is_interruptible
    timer.begin(1000.0, may_interrupt=True)
    assert not timer.is_interruptible
    timer.end(is_interrupted=False)
    timer.begin(1000.0, may_interrupt=False)
    assert not timer.is_interruptible
    timer.end(is_interrupted=False)
    timer.begin(1000.0, may_interrupt=True)
    assert timer.is_interruptible


def test_times_are_those_of_the_last_step_and_what_was_thrown_away_is_nobodys() -> None:
    clock, cpu_clock = Clock(), Clock()
    timer = StepTimer(clock, cpu_clock, preempt_threshold_s=0.1)
    for is_interrupted in (False, True):
        timer.begin(5.0, may_interrupt=True)
        clock.now_s += 2.0
        cpu_clock.now_s += 3.0
        timer.end(is_interrupted=is_interrupted)
        cpu_clock.now_s += 1.0
        assert (timer.started_s, timer.elapsed_ms) == (clock.now_s - 2.0, 2000.0)
        assert timer.cpu_ms() == (0.0 if is_interrupted else 4000.0)


def test_how_late_steps_are_lately_is_forgotten() -> None:
    clock = Clock()
    timer = StepTimer(clock, clock, preempt_threshold_s=0.1)
    assert timer.lateness == 1.0

    def step(predicted_ms: float, took_ms: float, *, is_interrupted: bool = False) -> None:
        timer.begin(predicted_ms, may_interrupt=False)
        clock.now_s += took_ms / 1000
        timer.end(is_interrupted=is_interrupted)

    step(1.0, 30.0)
    assert 1.0 < timer.lateness < 1.5, "a short step says little"
    for _ in range(10):
        step(100.0, 250.0)
    assert 2.2 < timer.lateness < 2.5
    step(100.0, 10.0, is_interrupted=True)
    assert 2.2 < timer.lateness < 2.5, "it says nothing of its time"
    clock.now_s += 60.0
    step(100.0, 100.0)
    assert 1.0 < timer.lateness < 1.1
    for _ in range(50):
        step(100.0, 80.0)
    assert timer.lateness == 1.0
