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
