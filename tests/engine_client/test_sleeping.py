"""An engine that sleeps, and has no process until a request needs one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.lowlevel
import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import ModelLoading
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.errors import EngineUnavailable, ModelTooLarge
from tests.engine_client.test_client import are_whole, begin, client, collect, is_served, kill_engine
from tests.fakes import FAKE_INFO
from tests.gates import Gate
from tests.scheduler.driver import request
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@asynccontextmanager
async def asleep(*flags: str, cache_file: str | None = None) -> AsyncIterator[EngineClient]:
    engine = client(*flags, calibrate="never", cache_file=cache_file, begins_asleep=True, foretold=FAKE_INFO)
    engine.on_wanted = engine.residency.wake
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        await engine.close()
        await task


async def test_a_waiting_request_gets_the_progress_of_loading() -> None:
    async with asleep("load_s=0.2") as engine, engine.generate([request("a", output=2)]) as generation:
        news = [item async for item in generation.progress() if isinstance(item, ModelLoading)]
    assert news[0] == ModelLoading(0.0)
    assert news[-1] == ModelLoading(1.0)


async def test_requests_wake_the_engine_each_time_it_sleeps() -> None:
    requests = [request("a", output=6), request("b", output=6)]
    async with asleep() as engine:
        assert engine.info == FAKE_INFO
        for _ in range(3):
            assert (engine.state, engine.engine_pid) == (EngineState.ASLEEP, None)
            assert await are_whole(begin(engine, *requests), requests)
            assert engine.state is EngineState.READY
            pid = engine.engine_pid
            await engine.residency.sleep()
            assert engine.status().engine_rss_bytes == 0
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert engine.status().restarts == 0


async def test_a_request_that_comes_while_the_engine_falls_asleep_is_not_lost() -> None:
    one = request("a", output=6)
    async with asleep() as engine:
        await collect(engine, request("b", output=1))
        falling = asyncio.create_task(engine.residency.sleep())
        await anyio.lowlevel.checkpoint()
        assert engine.state is EngineState.ASLEEP
        assert await is_served(engine, one)
        await falling


async def test_a_model_that_cannot_be_loaded_fails_its_requests_and_can_be_loaded_again() -> None:
    async with asleep("fail=it is no model") as engine:
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match="could not be loaded: it is no model"):
                await collect(engine, request("a"))
            assert (engine.state, engine.status().reason) == (EngineState.FAILED, "it is no model")
            assert engine.residency.failed_s is not None


async def test_a_kill_while_the_model_loads_is_a_pause(door: Gate) -> None:
    one = request("a", output=6)
    door.close()
    async with asleep(door.loads) as engine:
        waiting = begin(engine, one)
        await eventually(lambda: engine.engine_pid is not None)
        kill_engine(engine)
        door.open()
        assert await are_whole(waiting, [one])
        assert engine.status().restarts == 1


@pytest.mark.parametrize("phase", ["loads", "builds"])
async def test_a_model_that_is_unloaded_while_it_loads_ends_without_a_traceback(
    door: Gate, phase: str, capfd: pytest.CaptureFixture[str]
) -> None:
    door.close()
    async with asleep(getattr(door, phase)) as engine:
        engine.residency.wake()
        await eventually(lambda: engine.engine_pid is not None)
        unloading = asyncio.create_task(engine.residency.sleep())
        await eventually(lambda: engine.state is EngineState.ASLEEP)
        door.open()
        await unloading
    assert "Traceback" not in capfd.readouterr().err


async def test_a_wake_that_is_refused_fails_the_request_at_once() -> None:
    def refuse() -> None:
        raise ModelTooLarge("it needs too much")

    async with asleep() as engine:
        engine.on_wanted = refuse
        with pytest.raises(ModelTooLarge):
            engine.generate([request("a")])
        assert not engine.residency.has_requests


async def test_an_engine_that_is_held_back_finishes_its_requests_and_holds_new_ones(gate: Gate) -> None:
    long, late = request("a", output=40), request("b", output=4)
    async with asleep(gate.steps) as engine:
        running = begin(engine, long)
        await eventually(lambda: engine.residency.is_at_work)
        engine.residency.hold_back()
        waiting = begin(engine, late)
        gate.open()
        assert await are_whole(running, [long])
        assert (engine.residency.is_at_work, engine.residency.has_requests) == (False, True)
        await engine.residency.sleep()
        engine.residency.wake()
        assert await are_whole(waiting, [late])


async def test_the_saved_cache_can_be_cleared_without_waking_the_engine(tmp_path: Path) -> None:
    cache_file = tmp_path / "cells"
    cache_file.touch()
    async with asleep(cache_file=str(cache_file)) as engine:
        engine.clear_cache()
        assert (cache_file.exists(), engine.state) == (False, EngineState.ASLEEP)
        engine.clear_cache()


async def test_draining_ends_an_engine_that_sleeps() -> None:
    async with asleep() as engine:
        await engine.drain(1.0)
        with pytest.raises(EngineUnavailable):
            engine.generate([request("a")])
