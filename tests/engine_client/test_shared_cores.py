"""Real engine processes with a fake backend that share the cores: one step at a time, through all deaths."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openai_cpu_server.contract.messages import CpuToken, CpuTokenReturned, EngineWants, ShortenCpuToken
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.child import HangLimits
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.shared_cores import CoresPartner, SharedCores
from openai_cpu_server.errors import RequestCancelled
from tests.clock import Clock
from tests.engine_client.test_client import (
    Ticks,
    are_whole,
    await_deaths,
    begin,
    client,
    collect,
    endless,
    finish_of,
    is_served,
    kill_engine,
    running,
)
from tests.gates import Gate, suspended
from tests.scheduler.driver import request
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE
LOADING = EngineWants(work=BATCH, is_loading=True)


class RecordedCores(SharedCores):
    def __init__(self, *, batch_floor: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(batch_floor=batch_floor, clock=clock)
        self.held: list[str] = []

    def act(self) -> None:
        super().act()
        if self.holder is not None:
            self.held.append(self.holder[0])


class Shared:
    def __init__(self, *, batch_floor: float = 0.1) -> None:
        self.cores = RecordedCores(batch_floor=batch_floor)
        self.partners: dict[str, CoresPartner] = {}

    def engine(self, name: str, *flags: str, step_s: float = 0.01, **watch: Any) -> EngineClient:
        self.partners[name] = self.cores.join(name)
        return client(f"step_s={step_s}", *flags, calibrate="never", partner=self.partners[name], **watch)

    def is_holding(self, name: str) -> bool:
        return self.cores.holder == self.partners[name].name


@asynccontextmanager
async def both(shared: Shared, a: EngineClient, b: EngineClient) -> AsyncIterator[None]:
    async with running(a), running(b):
        await eventually(lambda: shared.cores.holder is None)
        shared.cores.held.clear()
        yield


class TwoPartners:
    """Two partners of the same cores, without processes: `a` computes batch work and `b` loads."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cores = SharedCores(batch_floor=0.1, clock=self.clock)
        self.a, self.b = self.cores.join("a"), self.cores.join("b")
        self.sent_a: list[object] = []
        self.a.enter(self.sent_a.append)
        self.b.enter(lambda message: None)
        self.a.handle(EngineWants(work=BATCH), loads_for=None)
        self.b.handle(LOADING, loads_for=None)
        assert self.sent_a == [CpuToken(), ShortenCpuToken(after_ms=1000)]

    def a_gives_back(self) -> None:
        assert self.sent_a[2:] == [ShortenCpuToken(interrupts=True)]
        self.a.handle(CpuTokenReturned(wants=EngineWants(work=BATCH)), loads_for=INTERACTIVE)
        assert (self.a.is_waiting, self.cores.holder, self.b.is_awaited) == (True, self.b.name, True)


async def test_a_load_is_as_urgent_as_the_requests_that_wait_for_it() -> None:
    two = TwoPartners()
    two.b.handle(LOADING, loads_for=INTERACTIVE)
    two.a_gives_back()
    two.clock.now_s += 0.25
    for _ in range(2):
        two.b.leave()
        assert two.b.used_s(INTERACTIVE) == 0.25
    assert two.cores.holder == two.a.name


async def test_a_load_for_batch_work_becomes_urgent_with_an_interactive_request() -> None:
    two = TwoPartners()
    two.b.request_came(BATCH)
    assert len(two.sent_a) == 2
    two.b.request_came(INTERACTIVE)
    two.a.request_came(INTERACTIVE)  # `a` does not load, so its process sends its wants
    two.a_gives_back()


async def test_streams_of_two_models_are_whole_and_take_turns() -> None:
    shared = Shared()
    a, b = shared.engine("a"), shared.engine("b")
    requests = [request("x", output=60), request("y", output=60)]
    async with both(shared, a, b):
        assert await are_whole([*begin(a, requests[0]), *begin(b, requests[1])], requests)
        assert min(shared.partners[name].used_s(INTERACTIVE) for name in "ab") > 0
        await eventually(lambda: shared.cores.holder is None)


async def test_a_long_step_of_batch_work_is_interrupted_for_another_models_newcomer(gate: Gate) -> None:
    shared = Shared()
    gate.close()
    a, b = shared.engine("a"), shared.engine("b", "slow_curve=1", gate.steps)
    async with both(shared, a, b):
        (batch,) = begin(b, request("y", prompt=20, output=1, priority=BATCH))
        await eventually(lambda: b.status().running["batch"] == 1)
        await collect(a, request("x", output=3))
        gate.open()
        assert finish_of(await batch).interruptions == 1


async def test_a_request_without_the_turn_has_a_place_can_be_cancelled_and_is_not_a_hang() -> None:
    shared, ticks = Shared(batch_floor=0.0), Ticks()
    a, b = shared.engine("a"), shared.engine("b", hang_limits=HangLimits(step_s=1), clock=ticks)
    async with both(shared, a, b):
        async with endless(a, "x"):
            await eventually(lambda: shared.is_holding("a"))
            (doomed,) = begin(b, request("y/0", output=5, priority=BATCH))
            await eventually(lambda: b.requests() != [] and b.requests()[0].position == 1)
            ticks.pace_s = 1.0
            await ticks.pass_looks(4)
            assert b.cancel("y")
            with pytest.raises(RequestCancelled):
                await doomed
            await eventually(lambda: not shared.partners["b"].is_waiting)
            assert (a.status().restarts, b.status().restarts) == (0, 0)
        await eventually(lambda: shared.cores.holder is None)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_holder_that_dies_or_hangs_frees_the_turn_for_the_next(hangs: bool, gate: Gate) -> None:
    shared, ticks = Shared(), Ticks()
    a = shared.engine("a", gate.steps, hang_limits=HangLimits(step_s=1), clock=ticks)
    b = shared.engine("b")
    held, waiting = request("x", output=30), request("y", output=20)
    gate.close()
    async with both(shared, a, b):
        streams = begin(a, held)
        await eventually(lambda: shared.is_holding("a") and a.status().running["interactive"] == 1)
        streams += begin(b, waiting)
        await eventually(lambda: shared.partners["b"].is_waiting)
        with suspended(a.engine_pid):
            if not hangs:
                kill_engine(a)
            ticks.pace_s = 1.0 * hangs
            await await_deaths(a, 1)
        ticks.pace_s = 0.0
        gate.open()  # otherwise the successor may get the turn before `waiting` ends, and holds it
        assert await are_whole(streams, [held, waiting])
        assert (a.status().restarts, b.status().restarts) == (1, 0)


async def test_a_model_loads_in_pieces_beside_a_stream() -> None:
    shared = Shared(batch_floor=0.5)
    a, b = shared.engine("a"), shared.engine("b", "load_pieces=5")
    async with running(a), endless(a, "x") as stream:
        await eventually(lambda: stream)
        num_before = len(stream)
        async with running(b):
            assert shared.partners["b"].used_s(BATCH) > 0
            assert len(stream) > num_before


async def test_an_adapter_is_loaded_with_the_turn() -> None:
    shared = Shared(batch_floor=0.5)
    a, b = shared.engine("a"), shared.engine("b")
    async with both(shared, a, b):
        async with endless(a, "x"):
            await eventually(lambda: shared.is_holding("a"))
            await b.load_adapter(Adapter(name="one", path="one.gguf", digest="d"))
            assert shared.partners["b"].used_s(BATCH) > 0
        await eventually(lambda: shared.cores.holder is None)


async def test_steps_are_measured_only_with_the_turn_and_only_until_it_is_recalled(tmp_path: Path) -> None:
    shared = Shared()
    a = shared.engine("a")
    b = shared.engine("b", f"measuring={tmp_path}/started")
    async with both(shared, a, b):
        await eventually((tmp_path / "started").exists)
        assert "b" in shared.cores.held
        assert await is_served(a, request("x", output=10))
