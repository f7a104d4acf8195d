"""Adapters of an engine process: loaded, replaced and lost while requests run. Only the backend is a fake."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.lowlevel
import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import AdapterLoaded, AdapterRefused
from openai_cpu_server.contract.model_info import Adapter, AdapterState, LoadedAdapter
from openai_cpu_server.engine_client.adapters import AdapterControl
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.errors import AdapterFailed, AdapterNotFound, EngineUnavailable
from tests.engine_client.test_client import (
    client,
    collect,
    endless,
    expected_text,
    kill_engine,
    running,
    text,
    until,
)
from tests.gates import suspended
from tests.scheduler.driver import request
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


def adapter(name: str, path: str = "one.gguf") -> Adapter:
    return Adapter(name=name, path=path, digest=hashlib.sha256(path.encode()).hexdigest())


def expected(name: str, adapter_key: str | None, output: int) -> str:
    return expected_text(request(name, output=output, adapter=adapter_key))


@asynccontextmanager
async def stream_continues(engine: EngineClient, one: Adapter) -> AsyncIterator[None]:
    async with endless(engine, "a", adapter=one.name) as stream:
        await eventually(lambda: stream)
        yield
        num_before = len(stream)
        await eventually(lambda: len(stream) > num_before + 5)
    so_far = text(stream)[:150]
    assert so_far == expected("a", one.key, 200)[: len(so_far)]


async def test_adapters_of_the_start_can_be_requested_and_bad_ones_are_refused_alone() -> None:
    one = adapter("one")
    adapters = (one, adapter("worse", "bad.gguf"), adapter("worst", "kill.gguf"))
    async with running(client(adapters=adapters)) as engine:
        states = {status.adapter.name: status.state for status in engine.adapters()}
        assert states == {
            "one": AdapterState.READY,
            "worse": AdapterState.FAILED,
            "worst": AdapterState.FAILED,
        }
        assert [loaded.key for loaded in engine.info.adapters] == [one.key]
        adapted, plain = await asyncio.gather(
            collect(engine, request("a", output=9, adapter="one")), collect(engine, request("b", output=9))
        )
        for name, message in (
            ("worse", r"could not be loaded: bad\.gguf is not an adapter"),
            ("worst", "killed the engine"),
            ("two", "'two' does not exist for this model; it has one"),
        ):
            with pytest.raises(AdapterNotFound, match=message):
                engine.generate([request("a", adapter=name)])
    assert text(adapted) == expected("a", one.key, 9)
    assert text(plain) == expected("b", None, 9)


async def test_an_adapter_is_loaded_while_others_are_served_and_again_after_a_crash() -> None:
    one = adapter("one")
    async with running(client()) as engine:
        assert (await engine.load_adapter(one)).state is AdapterState.READY
        kill_engine(engine)
        await until(engine, EngineState.RESTARTING)
        events = await collect(engine, request("a", output=9, adapter="one"))
    assert text(events) == expected("a", one.key, 9)


async def test_an_adapter_that_is_refused_or_kills_the_process_changes_nothing() -> None:
    one = adapter("one")
    async with running(client("step_s=0.01", adapters=(one,))) as engine, stream_continues(engine, one):
        for path, message in (("bad.gguf", "not an adapter"), ("kill.gguf", "killed the engine")):
            with pytest.raises(AdapterFailed, match=message):
                await engine.load_adapter(adapter("one", path))
        assert [status.adapter for status in engine.adapters()] == [one]
        assert engine.status().restarts == 1


@pytest.mark.parametrize("dies", [False, True])
async def test_a_hot_swap_loses_no_request_with_or_without_a_crash(dies: bool) -> None:
    old, new = adapter("one", "old.gguf"), adapter("one", "new.gguf")
    async with running(client("step_s=0.01", adapters=(old,))) as engine:
        async with stream_continues(engine, old):
            await engine.load_adapter(new)
            if dies:
                kill_engine(engine)
            after = await collect(engine, request("b", output=9, adapter="one"))
            assert text(after) == expected("b", new.key, 9)
        await eventually(lambda: [loaded.key for loaded in engine.info.adapters] == [new.key])
        for version in (old, old, new):
            await engine.load_adapter(version)
            events = await collect(engine, request("a", output=9, adapter="one"))
            assert text(events) == expected("a", version.key, 9)


async def test_an_unloaded_adapter_serves_running_requests_and_no_others() -> None:
    one = adapter("one")
    async with running(client("step_s=0.01", adapters=(one,))) as engine:
        async with stream_continues(engine, one):
            assert engine.unload_adapter("one")
            assert not engine.unload_adapter("one")
            with pytest.raises(AdapterNotFound, match="it has none"):
                engine.generate([request("b", adapter="one")])
        await eventually(lambda: engine.info.adapters == ())


async def test_the_engine_stops_while_an_adapter_is_awaited() -> None:
    engine = client()
    async with running(engine):
        with suspended(engine.engine_pid):
            loading = asyncio.create_task(engine.load_adapter(adapter("one")))
            await anyio.lowlevel.checkpoint()
            engine.kill()
    with pytest.raises(EngineUnavailable, match="shutting down"):
        await loading


async def test_a_good_adapter_replaces_one_that_was_refused() -> None:
    bad, good = adapter("one", "bad.gguf"), adapter("one", "good.gguf")
    control = AdapterControl([bad])
    control.handle(AdapterRefused(bad.key, "It is bad."))
    loading = asyncio.create_task(control.load(good))
    await anyio.lowlevel.checkpoint()
    control.handle(AdapterLoaded(LoadedAdapter(key=good.key, rank=1, num_tensors=1, size_bytes=1)))
    await loading
    assert control.status(bad.key) is None
    assert [status.adapter for status in control.offered] == [good]
