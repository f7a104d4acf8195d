"""How many threads compute, on a machine that others use too: simulated time, cores and strangers."""

from __future__ import annotations

import logging

import pytest

from openai_cpu_server.contract.messages import EngineOptions, StepDone, Submit
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.step import Step, StepResult
from openai_cpu_server.engine.cores import CoreMonitor, CoresSeen, ThreadChoice
from openai_cpu_server.engine.generating import build_core
from openai_cpu_server.scheduler.cost_model import CostModel, ThreadCosts
from tests.fakes import FakeBackend, FakeThreads
from tests.scheduler.driver import request


class Machine(FakeThreads):
    """Threads of a step wait for the slowest. Where one shares its core with a stranger it gets a third."""

    def __init__(self, cores: int) -> None:
        super().__init__(cores)
        self.strangers = 0
        self.now_s = 0.0
        self.quota: float | None = None  # cores that its control group may use, whatever is idle

    def step(self, alone_ms: float = 10.0) -> float:
        """Compute what takes so long on all cores; returns the milliseconds that it took."""
        num_sharing = min(self.count, max(0, self.count + self.strangers - self.most))
        elapsed_s = alone_ms / 1000 * self.most / self.count * (3 if num_sharing else 1)
        shares = [2 / 3] * num_sharing
        if self.quota is not None and self.quota < self.count:
            elapsed_s *= self.count / self.quota
            shares = [1 - self.quota / self.count] * self.count
            self.throttled += elapsed_s * shares[0]
        self.now_s += elapsed_s
        for thread in range(self.count):
            share = shares[thread] if thread < len(shares) else 0.0
            self.waits[thread] = self.waits.get(thread, 0.0) + elapsed_s * share
        self.idle += elapsed_s * max(0, self.most - self.count - self.strangers)
        return 1000 * elapsed_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.idle += seconds * max(0, self.most - self.strangers)


class Watched:
    def __init__(self, cores: int) -> None:
        self.machine = Machine(cores)
        self.watch = CoreMonitor(self.machine, lambda: self.machine.now_s)
        self.counts: list[int] = []  # threads of each step
        self.taught: list[bool] = []

    def compute(self, seconds: float, alone_ms: float = 10.0) -> None:
        end_s = self.machine.now_s + seconds
        while self.machine.now_s < end_s:
            self.counts.append(self.watch.count)
            self.taught.append(self.watch.computed(self.machine.step(alone_ms), alone_ms))
            assert self.machine.count == self.watch.count


def test_a_stranger_gets_a_core_and_gives_it_back() -> None:
    one = Watched(cores=2)
    one.compute(1.0)
    assert set(one.counts) == {2}
    one.machine.strangers = 1
    one.compute(0.1)
    assert one.watch.count == 1
    num_before = len(one.counts)
    one.compute(5.0)
    beside = one.counts[num_before:]
    assert beside.count(2) < 0.1 * len(beside), "a core that is not idle is seldom tried"
    one.machine.strangers = 0
    one.compute(0.5)
    assert one.watch.count == 2


def test_as_many_threads_go_as_there_are_strangers() -> None:
    one = Watched(cores=16)
    one.machine.strangers = 3
    one.compute(1.0)
    assert one.watch.count == 13
    one.machine.strangers = 1
    one.compute(1.0)
    assert one.watch.count == 15


def test_where_strangers_are_everywhere_all_threads_stay() -> None:
    """Fewer would get no more of their cores. It is tried again now and then, which takes little."""
    one = Watched(cores=4)
    one.machine.strangers = 4
    one.compute(20.0)
    assert one.counts.count(4) > 0.9 * len(one.counts)
    assert any(one.taught[-20:]), "what lasts is learned"


def test_fewer_are_tried_at_once_where_much_more_is_lost_than_they_were_tried_for_in_vain() -> None:
    choice = ThreadChoice(2)

    def seen(lost: float, speed: float) -> CoresSeen:
        return CoresSeen(lost=(0.0, lost), free=0.0, speed=speed, elapsed_s=0.06)

    assert choice.decide(seen(0.35, 1.0), 0.0) == 1
    assert choice.decide(seen(0.0, 0.5), 0.1) == 2, "it was slower"
    assert choice.decide(seen(0.35, 1.0), 0.2) == 2
    assert choice.decide(seen(0.65, 0.3), 0.3) == 1
    assert choice.decide(seen(0.0, 0.5), 0.4) == 1, "it was faster"


def test_a_quota_is_kept_to_though_cores_are_idle_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    one = Watched(cores=4)
    one.machine.quota = 2.0
    with caplog.at_level(logging.INFO):
        one.compute(1.0)
    assert caplog.messages == [
        "threads that compute: 2 of 4 (the control group's quota of CPU time is used up)"
    ]
    one.compute(19.0)
    assert one.counts.count(2) > 0.8 * len(one.counts)


def test_time_without_work_is_not_taken_for_free_cores() -> None:
    one = Watched(cores=2)
    one.machine.strangers = 1
    one.compute(0.3)
    for _ in range(50):
        one.machine.pause(0.1)
        one.compute(0.02)
    assert one.counts[-50:].count(1) >= 40


def test_steps_that_lose_cores_for_a_moment_teach_nothing() -> None:
    one = Watched(cores=2)
    one.compute(0.5)
    assert all(one.taught)
    one.machine.strangers = 1
    one.compute(0.02)
    assert not one.taught[-1]
    one.compute(0.5)
    assert one.taught[-1]


def test_a_quota_is_told_apart_from_others_who_compute_and_all_threads_compute_what_is_timed() -> None:
    one = Watched(cores=2)
    one.machine.strangers = 1
    one.compute(1.0)
    assert (one.watch.count, one.watch.is_throttled) == (1, False)
    one.watch.use_all()
    assert one.machine.count == one.watch.count == 2
    one.machine.strangers, one.machine.quota = 0, 0.5
    one.compute(1.0)
    assert one.watch.is_throttled
    one.machine.quota = None
    one.compute(1.0)
    assert not one.watch.is_throttled


def test_the_log_says_it_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    one = Watched(cores=2)
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            one.machine.strangers = 1
            one.compute(0.3)
            one.machine.strangers = 0
            one.compute(0.3)
        assert caplog.messages == ["threads that compute: 1 of 2 (other processes use the cores)"]
        one.compute(10.0)
    assert caplog.records[-1].message == "threads that compute: 2 of 2 (all threads have their cores again)"


CURVE = CostCurve(step_ms=((1, 20.0), (16, 60.0), (64, 240.0)), attended_ms=0.001)


def test_each_number_of_threads_has_costs_of_its_own() -> None:
    costs = ThreadCosts(CostModel(CURVE), threads=2)
    alone = [costs.predict_ms(n, 1000) for n in (1, 4, 64)]
    costs.use(1)
    slower = [costs.predict_ms(n, 1000) / ms for n, ms in zip((1, 4, 64), alone, strict=True)]
    assert slower == pytest.approx([1.25, 1.8, 2.0], abs=0.1), "at once: one token waits for memory most"
    assert costs.slowdown(64, 1000) == pytest.approx(slower[2])
    for _ in range(300):
        costs.refine(4, 0, 100.0)
    assert costs.predict_ms(4) == pytest.approx(100.0, rel=0.05)
    costs.use(2)
    assert [costs.predict_ms(n, 1000) for n in (1, 4, 64)] == alone
    costs.use(1)
    costs.measured(CostModel(CURVE))
    assert costs.predict_ms(4) == pytest.approx(1.8 * 28, rel=0.05)


class BackendOn(FakeBackend):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.threads = self._machine = machine

    def execute(self, step: Step) -> StepResult:
        if step.spans:
            self._machine.step(CostModel(CURVE).predict_ms(step.num_tokens))
        return super().execute(step)


def test_an_engine_plans_with_the_threads_that_it_has() -> None:
    backend = BackendOn(machine := Machine(2))
    core = build_core(EngineOptions(model_path=""), backend, CURVE, clock=lambda: machine.now_s)
    core.handle(Submit(request=request("a", prompt=4000, output=90)))
    seen = []
    for number in range(90):
        machine.strangers = int(10 < number < 50)
        told = (message.figures for message in core.step() if isinstance(message, StepDone))
        seen += [(one.threads, one.predicted_ms, one.elapsed_ms) for one in told if one is not None]
    slowed = [(predicted_ms, ms) for threads, predicted_ms, ms in seen[12:] if threads == 1 and ms > 300]
    assert all(0.8 < predicted_ms / ms < 1.25 for predicted_ms, ms in slowed)
    assert len(slowed) > 20
    assert seen[-1][0] == 2
