"""Number of computing threads on a machine that other processes use: simulated time, cores and strangers."""

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
    """Threads of a step wait for the slowest. A thread that shares its core takes three times as long."""

    def __init__(self, cores: int) -> None:
        super().__init__(cores)
        self.strangers = 0
        self.now_s = 0.0
        self.quota: float | None = None  # cores that the control group may use even if others are idle

    def step(self, alone_ms: float = 10.0) -> float:
        """Compute work that takes `alone_ms` on all cores, and return its milliseconds."""
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


class Host:
    def __init__(self, cores: int) -> None:
        self.machine = Machine(cores)
        self.monitor = CoreMonitor(self.machine, lambda: self.machine.now_s)
        self.counts: list[int] = []  # threads of each step
        self.lessons: list[bool] = []  # whether the cost model learns from each step

    def compute(self, seconds: float, alone_ms: float = 10.0) -> None:
        end_s = self.machine.now_s + seconds
        while self.machine.now_s < end_s:
            self.counts.append(self.monitor.count)
            self.lessons.append(self.monitor.computed(self.machine.step(alone_ms), alone_ms))
            assert self.machine.count == self.monitor.count


def test_a_stranger_gets_a_core_and_gives_it_back() -> None:
    host = Host(cores=2)
    host.compute(1.0)
    assert set(host.counts) == {2}
    host.machine.strangers = 1
    host.compute(0.1)
    assert host.monitor.count == 1
    num_before = len(host.counts)
    host.compute(5.0)
    beside = host.counts[num_before:]
    assert beside.count(2) < 0.1 * len(beside), "a core that is not idle is seldom tried"
    host.machine.strangers = 0
    host.compute(0.5)
    assert host.monitor.count == 2


def test_each_stranger_costs_one_thread() -> None:
    host = Host(cores=16)
    host.machine.strangers = 3
    host.compute(1.0)
    assert host.monitor.count == 13
    host.machine.strangers = 1
    host.compute(1.0)
    assert host.monitor.count == 15


def test_all_threads_stay_where_each_core_has_a_stranger() -> None:
    """Fewer threads would get no larger share of their cores. They are tried now and then, at little cost."""
    host = Host(cores=4)
    host.machine.strangers = 4
    host.compute(20.0)
    assert host.counts.count(4) > 0.9 * len(host.counts)
    assert any(host.lessons[-20:]), "a state that lasts is learned"


def test_fewer_threads_are_tried_at_once_where_the_loss_has_grown_since_a_vain_trial() -> None:
    choice = ThreadChoice(2)

    def seen(lost: float, speed: float) -> CoresSeen:
        return CoresSeen(lost=(0.0, lost), free=0.0, speed=speed, elapsed_s=0.06)

    assert choice.decide(seen(0.35, 1.0), 0.0) == 1
    assert choice.decide(seen(0.0, 0.5), 0.1) == 2, "fewer threads were slower"
    assert choice.decide(seen(0.35, 1.0), 0.2) == 2
    assert choice.decide(seen(0.65, 0.3), 0.3) == 1
    assert choice.decide(seen(0.0, 0.5), 0.4) == 1, "fewer threads were faster"


def test_a_quota_limits_threads_though_cores_are_idle_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(cores=4)
    host.machine.quota = 2.0
    with caplog.at_level(logging.INFO):
        host.compute(1.0)
    assert caplog.messages == [
        "threads that compute: 2 of 4 (the control group's quota of CPU time is used up)"
    ]
    host.compute(19.0)
    assert host.counts.count(2) > 0.8 * len(host.counts)


def test_time_without_work_is_not_taken_for_free_cores() -> None:
    host = Host(cores=2)
    host.machine.strangers = 1
    host.compute(0.3)
    for _ in range(50):
        host.machine.pause(0.1)
        host.compute(0.02)
    assert host.counts[-50:].count(1) >= 40


def test_steps_that_lose_cores_for_a_moment_teach_nothing() -> None:
    host = Host(cores=2)
    host.compute(0.5)
    assert all(host.lessons)
    host.machine.strangers = 1
    host.compute(0.02)
    assert not host.lessons[-1]
    host.compute(0.5)
    assert host.lessons[-1]


def test_a_quota_is_distinguished_from_strangers_and_measurements_use_all_threads() -> None:
    host = Host(cores=2)
    host.machine.strangers = 1
    host.compute(1.0)
    assert (host.monitor.count, host.monitor.is_throttled) == (1, False)
    host.monitor.use_all()
    assert host.machine.count == host.monitor.count == 2
    host.machine.strangers, host.machine.quota = 0, 0.5
    host.compute(1.0)
    assert host.monitor.is_throttled
    host.machine.quota = None
    host.compute(1.0)
    assert not host.monitor.is_throttled


def test_changes_of_the_thread_count_are_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(cores=2)
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            host.machine.strangers = 1
            host.compute(0.3)
            host.machine.strangers = 0
            host.compute(0.3)
        assert caplog.messages == ["threads that compute: 1 of 2 (other processes use the cores)"]
        host.compute(10.0)
    assert caplog.records[-1].message == "threads that compute: 2 of 2 (all threads have their cores again)"


CURVE = CostCurve(step_ms=((1, 20.0), (16, 60.0), (64, 240.0)), attended_ms=0.001)


def test_each_number_of_threads_has_costs_of_its_own() -> None:
    costs = ThreadCosts(CostModel(CURVE), threads=2)
    alone = [costs.predict_ms(n, 1000) for n in (1, 4, 64)]
    costs.use(1)
    slower = [costs.predict_ms(n, 1000) / ms for n, ms in zip((1, 4, 64), alone, strict=True)]
    assert slower == pytest.approx([1.25, 1.8, 2.0], abs=0.1), "one token mostly waits for memory"
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


def test_an_engine_plans_with_its_current_threads() -> None:
    backend = BackendOn(machine := Machine(2))
    core = build_core(EngineOptions(model_path=""), backend, CURVE, clock=lambda: machine.now_s)
    core.handle(Submit(request=request("a", prompt=4000, output=90)))
    times = []
    for number in range(90):
        machine.strangers = int(10 < number < 50)
        steps = (message.figures for message in core.step() if isinstance(message, StepDone))
        times += [(step.threads, step.predicted_ms, step.elapsed_ms) for step in steps if step is not None]
    slowed = [(predicted_ms, ms) for threads, predicted_ms, ms in times[12:] if threads == 1 and ms > 300]
    assert all(0.8 < predicted_ms / ms < 1.25 for predicted_ms, ms in slowed)
    assert len(slowed) > 20
    assert times[-1][0] == 2
