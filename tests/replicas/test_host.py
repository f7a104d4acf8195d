"""The replica's host and its door: real TCP and a real engine process with a fake backend."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext

import anyio
import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions, Submit
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import EngineUnavailable
from openai_cpu_server.replicas.host.host import CpuSpending, ReplicaDoor, ReplicaHost
from openai_cpu_server.replicas.remote.engine import RemoteEngine
from openai_cpu_server.replicas.remote.proxy import StreamLink
from openai_cpu_server.replicas.wire import DoorAddress, ReplicaLost, encode_orders, read_news
from tests.clock import Clock
from tests.engine_client.test_client import expected_text
from tests.fake_engine import COMMAND
from tests.gates import Gate
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


class RecordedSpending(CpuSpending):
    def __init__(self) -> None:
        super().__init__()
        self.taken: list[dict[str, float]] = []

    def take(self) -> dict[str, float]:
        self.taken.append(super().take())
        return self.taken[-1]


@asynccontextmanager
async def hosting(
    *flags: str,
    lease_s: float = 60.0,
    spending: CpuSpending | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[ReplicaHost]:
    options = EngineOptions(
        model_path="", max_seqs=8, kv_tokens=4096, calibrate="never", reports_forecast=True
    )
    spending = spending or CpuSpending()
    supervisor = Supervisor((*COMMAND, *flags), options, begins_asleep=True, observer=spending)
    host = ReplicaHost(supervisor, lease_s=lease_s, spending=spending, clock=clock)
    running = asyncio.create_task(host.run())
    try:
        with anyio.fail_after(DEADLINE_S):
            await host.settled()
        yield host
    finally:
        await host.close()
        await running


@asynccontextmanager
async def opened(
    host: ReplicaHost, *, sending_s: float = 60.0, tls: SSLContext | None = None
) -> AsyncIterator[DoorAddress]:
    door = ReplicaDoor(host, sending_s=sending_s)
    try:
        yield await door.open("127.0.0.1", tls=tls)
    finally:
        await door.close()


def link(address: DoorAddress, tls: SSLContext | None = None) -> StreamLink:
    async def door() -> DoorAddress:
        return address

    async def load_adapter(adapter: Adapter) -> AdapterStatus:
        raise ReplicaLost("it loads none here")

    return StreamLink(door, load_adapter, tls=tls)


@asynccontextmanager
async def remote(
    *addresses: DoorAddress,
    lease_s: float = 60.0,
    state: EngineState = EngineState.READY,
    spent: Callable[[dict[str, float]], None] = lambda spent_ms: None,
) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(max_queue=100, lease_s=lease_s, spent=spent)
    running = asyncio.create_task(engine.run())
    try:
        engine.set_replicas({f"r{number}": link(address) for number, address in enumerate(addresses)})
        await eventually(lambda: engine.state is state)
        yield engine
    finally:
        running.cancel()
        await engine.close()


async def check_stream(
    engine: RemoteEngine, name: str, *, at_5: Callable[[], Awaitable[None] | None] = lambda: None
) -> None:
    """Compare the text of a stream with the expected one. `at_5` is called once, after five characters."""
    one, text, is_called = request(name, output=60), "", False
    with anyio.fail_after(DEADLINE_S):
        async with engine.generate([one]) as generation:
            async for event in generation:
                text += event.text
                if len(text) >= 5 and not is_called:
                    is_called = True
                    if (awaitable := at_5()) is not None:
                        await awaitable
    assert text == expected_text(one)


async def test_a_crash_of_the_engine_process_is_a_pause_at_its_replica(gate: Gate) -> None:
    async with hosting(gate.steps) as host, opened(host) as door, remote(door) as engine:

        def crash() -> None:
            os.kill(host.engine_pid or 0, signal.SIGSEGV)
            gate.open()

        await check_stream(engine, "a", at_5=crash)
        await eventually(lambda: engine.status().restarts >= 1)


async def test_a_request_continues_at_another_replica_when_its_own_ends(gate: Gate) -> None:
    async with (
        hosting(gate.steps) as first,
        hosting(gate.steps) as second,
        opened(first) as first_door,
        opened(second) as second_door,
        remote(first_door, second_door) as engine,
    ):

        async def end() -> None:
            await (first if first.num_live else second).close()
            gate.open()

        await check_stream(engine, "a", at_5=end)


async def test_cpu_time_that_an_api_process_misses_when_it_leaves_is_reported_to_another() -> None:
    spending = RecordedSpending()
    async with hosting(spending=spending) as host:
        leaver = host.attend("leaver")
        assert not read_news(await anext(leaver)).spent_ms
        assert await host.send_orders(
            "leaver", encode_orders([Submit(request=request("a", output=20, client="mine"))])
        )
        await eventually(lambda: any(spent_ms.get("mine") for spent_ms in spending.taken))
        await leaver.aclose()  # type: ignore[attr-defined]
        reported_ms: list[dict[str, float]] = []
        with anyio.fail_after(DEADLINE_S):
            async for payload in host.attend("heir"):
                reported_ms.append(read_news(payload).spent_ms)
                if reported_ms[-1].get("mine"):
                    break


async def test_an_api_process_that_falls_silent_loses_its_requests() -> None:
    clock = Clock()
    async with hosting("step_s=0.01", clock=clock) as host:
        news = host.attend("silent")
        assert read_news(await anext(news)).report is not None
        assert await host.send_orders("silent", encode_orders([Submit(request=request("a", output=3000))]))
        clock.now_s += 60.1
        with anyio.fail_after(DEADLINE_S):
            async for payload in news:
                assert not read_news(payload).ended
        assert host.num_live == 0
        assert not await host.send_orders("silent", encode_orders([]))


async def test_a_model_that_cannot_be_loaded_is_a_state_with_its_reason() -> None:
    failed = EngineState.FAILED
    async with hosting("fail=it is no model") as host, opened(host) as door:
        async with remote(door, state=failed) as engine:
            with pytest.raises(EngineUnavailable, match="it is no model"):
                engine.generate([request("a")])
        assert host.state is failed
