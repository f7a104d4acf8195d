"""How long a step may be thrown away, and what it has cost."""

from __future__ import annotations

from openai_cpu_server.engine.base import StepTimer


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
