"""Real engine processes with a fake backend that share the cores: one step at a time, whoever dies."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions, EngineWants, GrantTurn, ShortenTurn, TurnBack
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.shared_cores import CoresPartner, SharedCores
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.engine_client.watchdog import HangLimits
from openai_cpu_server.errors import RequestCancelled
from tests.engine_client.test_client import (
    collect,
    expected_text,
    is_served,
    kill_engine,
    running,
    text,
    until,
)
from tests.scheduler.driver import request
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE
LOADING = EngineWants(work=BATCH, is_loading=True)


class Shared:
    """Cores, and the engines on them."""

    def __init__(self, *, batch_floor: float = 0.1) -> None:
        self.cores = SharedCores(batch_floor=batch_floor)
        self.partners: dict[str, CoresPartner] = {}

    def engine(
        self, name: str, *flags: str, step_s: float = 0.01, hang_limits: HangLimits | None = None
    ) -> EngineClient:
        self.partners[name] = self.cores.join(name)
        supervisor = Supervisor(
            [sys.executable, "-m", "tests.fake_engine", f"step_s={step_s}", *flags],
            EngineOptions(model_path="", max_seqs=8, kv_tokens=4096, calibrate="never"),
            hang_limits=hang_limits or HangLimits(),
            partner=self.partners[name],
        )
        return EngineClient(supervisor, max_queue=1000)

    def is_holding(self, name: str) -> bool:
        return self.cores.holder == self.partners[name].name


@asynccontextmanager
async def both(shared: Shared, a: EngineClient, b: EngineClient) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(a))
        await stack.enter_async_context(running(b))
        await eventually(lambda: shared.cores.holder is None)
        yield


class TwoPartners:
    """Of the same cores, without processes: `a` computes batch work and `b` loads."""

    def __init__(self) -> None:
        self.cores = SharedCores(batch_floor=0.1)
        self.a, self.b = self.cores.join("a"), self.cores.join("b")
        self.sent_a: list[object] = []
        self.a.enter(self.sent_a.append)
        self.b.enter(lambda message: None)
        self.a.heard(EngineWants(work=BATCH), loads_for=None)
        self.b.heard(LOADING, loads_for=None)
        assert self.sent_a == [GrantTurn(), ShortenTurn(after_ms=pytest.approx(1000, abs=50))]

    def a_gives_back(self) -> None:
        assert self.sent_a[2:] == [ShortenTurn(interrupts=True)]
        self.a.heard(TurnBack(wants=EngineWants(work=BATCH)), loads_for=INTERACTIVE)
        assert (self.a.is_waiting, self.cores.holder, self.b.is_awaited) == (True, self.b.name, True)


async def test_a_load_is_as_urgent_as_who_waits_for_it() -> None:
    two = TwoPartners()
    two.b.heard(LOADING, loads_for=INTERACTIVE)
    two.a_gives_back()
    await asyncio.sleep(0.01)
    two.b.leave()
    used_s = two.b.used_s(INTERACTIVE)
    two.b.leave()
    assert two.b.used_s(INTERACTIVE) == used_s > 0
    assert two.cores.holder == two.a.name


async def test_a_load_that_began_as_batch_work_hurries_as_soon_as_somebody_waits_for_it() -> None:
    two = TwoPartners()
    two.b.request_came(BATCH)
    assert len(two.sent_a) == 2
    two.b.request_came(INTERACTIVE)
    two.a.request_came(INTERACTIVE)  # it does not load: its process says what it wants
    two.a_gives_back()


async def test_streams_of_two_models_are_whole_and_take_turns() -> None:
    shared = Shared()
    a, b = shared.engine("a"), shared.engine("b")
    one, other = request("x", output=60), request("y", output=60)
    async with both(shared, a, b):
        found = await asyncio.gather(collect(a, one), collect(b, other))
        assert [text(events) for events in found] == [expected_text(one), expected_text(other)]
        used = [shared.partners[name].used_s(INTERACTIVE) for name in "ab"]
        assert min(used) > 0
        await eventually(lambda: shared.cores.holder is None)


async def test_a_stream_goes_on_beside_batch_work_of_another_model_which_goes_on_too() -> None:
    shared = Shared()
    a, b = shared.engine("a"), shared.engine("b", step_s=0.05)
    async with both(shared, a, b):
        batch = asyncio.create_task(collect(b, request("y", output=30, priority=BATCH)))
        await eventually(lambda: shared.is_holding("b"))
        streamed = request("x", output=100)
        assert text(await collect(a, streamed)) == expected_text(streamed)
        assert not batch.done()
        assert shared.partners["b"].used_s(BATCH) > 0
        assert text(await batch) == expected_text(request("y", output=30))


async def test_a_long_step_of_batch_work_is_thrown_away_for_another_models_newcomer() -> None:
    shared = Shared()
    a, b = shared.engine("a"), shared.engine("b", "slow_curve=1", step_s=2.0)
    async with both(shared, a, b):
        batch = asyncio.create_task(collect(b, request("y", prompt=20, output=1, priority=BATCH)))
        await eventually(lambda: b.status().running["batch"] == 1)
        await collect(a, request("x", output=3))
        assert not batch.done()
        events = await batch
        assert events[-1].finish.interruptions == 1


async def test_who_waits_for_the_turn_can_be_cancelled_and_hears_of_the_queue() -> None:
    shared = Shared(batch_floor=0.0)
    a, b = shared.engine("a"), shared.engine("b")
    async with both(shared, a, b):
        endless = asyncio.create_task(collect(a, request("x", output=3000)))
        await eventually(lambda: shared.is_holding("a"))
        doomed = asyncio.create_task(collect(b, request("y/0", output=5, priority=BATCH)))
        await eventually(lambda: b.requests() != [] and b.requests()[0].position == 1)
        assert b.cancel("y")
        with pytest.raises(RequestCancelled):
            await doomed
        await eventually(lambda: not shared.partners["b"].is_waiting)
        assert a.cancel("x")
        with pytest.raises(RequestCancelled):
            await endless
        await eventually(lambda: shared.cores.holder is None)


async def test_a_turn_that_comes_when_nothing_is_wanted_any_more_goes_back() -> None:
    shared = Shared(batch_floor=0.0)
    a, b = shared.engine("a"), shared.engine("b")
    async with both(shared, a, b):
        for number in range(5):
            first = asyncio.create_task(collect(a, request(f"x{number}/0", output=3000)))
            await eventually(lambda: shared.is_holding("a"))
            second = asyncio.create_task(collect(b, request(f"y{number}/0", output=3000, priority=BATCH)))
            await eventually(lambda: shared.partners["b"].is_waiting)
            assert a.cancel(f"x{number}")  # the turn goes to b,
            assert b.cancel(f"y{number}")  # which does not want it any more
            await asyncio.gather(first, second, return_exceptions=True)
            await eventually(lambda: shared.cores.holder is None)
        assert await is_served(a, request("z", output=5))


async def test_the_death_of_the_holder_frees_the_turn_at_once() -> None:
    shared = Shared()
    a, b = shared.engine("a", "load_s=0.5", step_s=30.0), shared.engine("b")
    async with both(shared, a, b):
        killed = asyncio.create_task(collect(a, request("x", output=1000)))
        await eventually(lambda: shared.is_holding("a") and a.status().running["interactive"] == 1)
        waiting = request("y", output=20)
        served = asyncio.create_task(collect(b, waiting))
        await eventually(lambda: shared.partners["b"].is_waiting)
        kill_engine(a)
        assert text(await served) == expected_text(waiting)
        assert a.state in (EngineState.RESTARTING, EngineState.READY)
        killed.cancel()


async def test_a_holder_that_does_not_come_back_hangs_and_who_waits_does_not() -> None:
    shared = Shared()
    limits = HangLimits(step_s=1.0)
    a = shared.engine("a", hang_limits=limits)
    b = shared.engine("b", hang_limits=limits)
    async with both(shared, a, b):
        stuck = asyncio.create_task(collect(a, request("x", output=100)))
        await eventually(lambda: shared.is_holding("a") and a.status().running["interactive"] == 1)
        kill_engine(a, signal.SIGSTOP)
        assert await is_served(b, request("y", output=20))
        await until(a, EngineState.READY)
        assert text(await stuck) == expected_text(request("x", output=100))
        assert (a.status().restarts, b.status().restarts) == (1, 0)


async def test_a_model_loads_in_pieces_beside_a_stream() -> None:
    shared = Shared(batch_floor=0.5)
    a, b = shared.engine("a"), shared.engine("b", "load_pieces=5")
    async with running(a):
        streamed = request("x", output=400)
        stream = asyncio.create_task(collect(a, streamed))
        await eventually(lambda: shared.is_holding("a"))
        async with running(b):
            assert not stream.done()
            assert shared.partners["b"].used_s(BATCH) > 0
            assert text(await stream) == expected_text(streamed)


async def test_an_adapter_is_tried_with_the_turn() -> None:
    shared = Shared(batch_floor=0.5)
    a, b = shared.engine("a"), shared.engine("b")
    async with both(shared, a, b):
        stream = asyncio.create_task(collect(a, request("x", output=300)))
        await eventually(lambda: shared.is_holding("a"))
        await b.load_adapter(Adapter(name="one", path="one.gguf", digest="d"))
        assert shared.partners["b"].used_s(BATCH) > 0
        assert not stream.done()
        await stream
        await eventually(lambda: shared.cores.holder is None)


async def test_a_model_that_dies_while_it_loads_frees_the_turn() -> None:
    shared = Shared()
    a, b = shared.engine("a"), shared.engine("b", "load_pieces=100000")
    async with running(a):
        loading = asyncio.create_task(b.run())
        await eventually(lambda: shared.is_holding("b"))
        await b.close()
        await loading
        one = request("x", output=10)
        assert text(await collect(a, one)) == expected_text(one)


async def test_steps_are_measured_only_with_the_turn_and_only_until_it_is_recalled(tmp_path: Path) -> None:
    shared = Shared()
    a = shared.engine("a")
    b = shared.engine("b", f"measuring={tmp_path}/begun")
    async with both(shared, a, b):
        await eventually(lambda: shared.is_holding("b"))
        assert await is_served(a, request("x", output=10))
        await eventually(lambda: not shared.is_holding("b"))
