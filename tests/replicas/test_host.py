"""A replica's side with a real engine process, of which only the backend is a fake."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import anyio
import msgspec
import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions, Submit
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import EngineUnavailable
from openai_cpu_server.replicas.host.host import ReplicaHost
from openai_cpu_server.replicas.host.session import CpuSpending
from openai_cpu_server.replicas.remote.engine import RemoteEngine
from openai_cpu_server.replicas.wire import encode_orders, read_news
from tests.engine_client.test_client import expected_text
from tests.fake_engine import COMMAND
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


class HostLink:
    """The way to a replica in this process. A `Link`."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host

    async def attend(self, lessee: str) -> AsyncIterator[bytes]:
        async with aclosing(self._host.attend(lessee)) as news:  # type: ignore[type-var]
            async for payload in news:
                yield payload

    async def tell(self, lessee: str, orders: bytes) -> bool:
        return self._host.tell(lessee, orders)

    async def load_adapter(self, adapter: bytes) -> bytes:
        status: AdapterStatus = await self._host.load_adapter(msgspec.msgpack.decode(adapter, type=Adapter))
        return msgspec.msgpack.encode(status)


@asynccontextmanager
async def hosting(*flags: str, lease_s: float = 60.0) -> AsyncIterator[ReplicaHost]:
    options = EngineOptions(model_path="", max_seqs=8, kv_tokens=4096, calibrate="never", tells_forecast=True)
    spending = CpuSpending()
    supervisor = Supervisor((*COMMAND, *flags), options, begins_asleep=True, observer=spending)
    host = ReplicaHost(supervisor, lease_s=lease_s, spending=spending)
    running = asyncio.create_task(host.run())
    try:
        with anyio.fail_after(DEADLINE_S):
            await host.settled()
        yield host
    finally:
        await host.close()
        await running


@asynccontextmanager
async def remote(
    *hosts: ReplicaHost, spent: Callable[[dict[str, float]], None] = lambda spent_ms: None
) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(max_queue=100, lease_s=60.0, spent=spent)
    running = asyncio.create_task(engine.run())
    try:
        engine.replicas_are({f"r{number}": HostLink(host) for number, host in enumerate(hosts)})
        yield engine
    finally:
        running.cancel()
        await engine.close()


async def until(engine: RemoteEngine, state: EngineState) -> None:
    await eventually(lambda: engine.state is state)


async def test_a_crash_of_the_engine_process_is_a_pause_at_its_replica() -> None:
    one = request("a", output=60)
    async with hosting("step_s=0.01") as host, remote(host) as engine:
        await until(engine, EngineState.READY)
        text = ""
        async with engine.generate([one]) as generation:
            async for event in generation:
                text += event.text
                if len(text) == 5 and host.engine_pid is not None:
                    os.kill(host.engine_pid, signal.SIGSEGV)
        assert text == expected_text(one)
        assert engine.status().restarts >= 1


async def test_cpu_time_is_told_by_client() -> None:
    told: list[dict[str, float]] = []
    async with hosting() as host, remote(host, spent=told.append) as engine:
        await until(engine, EngineState.READY)
        async with engine.generate([request("a", output=20, client="mine")]) as generation:
            assert [event async for event in generation]
        await eventually(lambda: any(spent_ms.get("mine") for spent_ms in told))


async def test_cpu_time_that_an_api_process_has_not_heard_of_when_it_leaves_is_told_to_another() -> None:
    async with hosting() as host:
        leaver = host.attend("leaver")
        assert not read_news(await anext(leaver)).spent_ms
        assert host.tell("leaver", encode_orders([Submit(request=request("a", output=20, client="mine"))]))
        await eventually(lambda: not host.num_live)
        await asyncio.sleep(1.2)  # by now it would be told, if it listened
        await leaver.aclose()  # type: ignore[attr-defined]
        with anyio.fail_after(DEADLINE_S):
            async for payload in host.attend("heir"):
                if read_news(payload).spent_ms.get("mine"):
                    break


async def test_a_request_goes_on_at_another_replica_when_its_own_ends() -> None:
    one = request("a", output=60)
    slow = "step_s=0.01"
    async with hosting(slow) as first, hosting(slow) as second, remote(first, second) as engine:
        await until(engine, EngineState.READY)
        text, holder = "", None
        async with engine.generate([one]) as generation:
            async for event in generation:
                text += event.text
                if len(text) >= 5 and holder is None:
                    holder = first if first.num_live else second
                    await holder.close()
        assert text == expected_text(one)


async def test_an_api_process_that_falls_silent_loses_its_requests_here() -> None:
    async with hosting("step_s=0.01", lease_s=0.3) as host:
        news = host.attend("silent")
        assert read_news(await anext(news)).report is not None
        submit = Submit(request=request("a", output=2000))
        assert host.tell("silent", encode_orders([submit]))
        with anyio.fail_after(DEADLINE_S):
            async for payload in news:
                assert not read_news(payload).ended
        assert host.num_live == 0
        assert not host.tell("silent", encode_orders([]))


async def test_a_model_that_cannot_be_loaded_is_a_state_with_its_reason() -> None:
    async with hosting("fail=it is no model") as host, remote(host) as engine:
        await until(engine, EngineState.FAILED)
        with pytest.raises(EngineUnavailable, match="it is no model"):
            engine.generate([request("a")])
        assert host.state is EngineState.FAILED
