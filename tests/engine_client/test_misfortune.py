"""The client when engine processes cannot be started or read, and when it ends at an awkward moment."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.errors import GenerationFailed, StartupError
from tests.engine_client.test_client import (
    Ticks,
    advance,
    are_whole,
    begin,
    client,
    collect,
    is_served,
    kill_engine,
    running,
    until,
)
from tests.gates import Gate
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

MINUTES = Ticks(61.0)  # more than a minute from one crash to the next, so that they are not too many


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Leave this process its open descriptors, and no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def has_reason(engine: EngineClient, words: str) -> bool:
    return words in (engine.status().reason or "")


async def test_an_engine_that_cannot_be_spawned_is_a_start_that_failed(gate: Gate) -> None:
    one = request("a", output=60)
    async with running(client(gate.steps, clock=MINUTES)) as engine:
        streams = begin(engine, one)
        await advance(engine, gate, 1)
        with no_more_files():
            kill_engine(engine)
            await eventually(lambda: has_reason(engine, "could not be started"))
            assert has_reason(engine, "Too many open files")
        gate.open()
        assert await are_whole(streams, [one])
        status = engine.status()
        assert status.restarts >= 2
        assert status.last_death.cause == "not_started"


async def test_a_first_engine_that_cannot_be_spawned_ends_the_start_with_a_line() -> None:
    engine = client()
    with no_more_files(), pytest.raises(StartupError, match="Too many open files"):
        await engine.run()


async def test_an_engine_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    babbling = tmp_path / "babbling"
    async with running(client(f"babble_if={babbling}", clock=MINUTES)) as engine:
        babbling.touch()
        kill_engine(engine)
        await eventually(lambda: has_reason(engine, "unreadable message"))
        babbling.unlink()
        assert await is_served(engine, request("a"))
        assert engine.status().last_death.cause == "bad_message"


async def test_a_preempted_request_waits_behind_any_number_of_others() -> None:
    async with running(client("step_s=0.01", max_seqs=1)) as engine:
        batch = engine.generate([request("batch", output=3000, priority=Priority.BATCH)])
        await eventually(lambda: engine.status().running["batch"] == 1)
        crowd = engine.generate([request(f"i{number}", output=3000) for number in range(300)])
        await eventually(lambda: engine.status().waiting == {"interactive": 299, "batch": 1})
        for generation in (crowd, batch):
            async with generation:
                pass


async def test_an_engine_that_becomes_ready_when_its_client_is_killed(door: Gate) -> None:
    """The engine's message has arrived, and its reader is due to run, when the client is killed."""
    engine = client(door.builds)
    door.close()
    task = asyncio.create_task(engine.run())
    waited_for = operator.attrgetter("_fut_waiter")
    await eventually(lambda: engine.status().timed is not None)
    door.open()
    with anyio.fail_after(DEADLINE_S):
        while not waited_for(task).done():
            await anyio.lowlevel.checkpoint()
    assert engine.state is EngineState.LOADING
    engine.kill()
    await task
    assert engine.state is EngineState.STOPPED
    assert engine.info is None


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 4, None])
async def test_a_client_that_is_closed_while_its_engine_spawns_or_loads(ticks: int | None) -> None:
    """An engine that is up would get a minute for its cache file. With None the engine loads."""
    engine = client("load_s=100", cache_file="nowhere")
    task = asyncio.create_task(engine.run())
    for _ in range(ticks or 0):
        await anyio.lowlevel.checkpoint()
    if ticks is None:
        await eventually(lambda: engine.engine_pid is not None)
    with anyio.fail_after(DEADLINE_S):
        await engine.close()
        await task


async def test_a_client_that_ends_does_not_wait_for_the_next_start() -> None:
    """The wait between two starts would take longer than twenty rounds of the event loop."""
    engine = client(clock=MINUTES)
    task = asyncio.create_task(engine.run())
    await until(engine, EngineState.READY)
    with no_more_files():
        kill_engine(engine)
        await eventually(lambda: has_reason(engine, "could not be started"))
        engine.kill()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert task.done()
    await task


async def test_a_kill_ends_a_close_that_waits_for_the_cache(tmp_path: Path) -> None:
    """The file is a pipe without a reader."""
    pipe = tmp_path / "cache"
    engine = client(cache_bytes=64 * 100, cache_file=str(pipe))
    async with running(engine):
        await collect(engine, request("a"))
        pid = engine.engine_pid
        os.mkfifo(pipe)
        closing = asyncio.create_task(engine.close())
        await eventually(lambda: engine.engine_pid is None)
        assert not closing.done()
        engine.kill()
        with anyio.fail_after(DEADLINE_S):
            await closing
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_request_may_be_retried_after_a_shutdown_but_not_after_it_killed_engines() -> None:
    async with running(client("step_s=0.02", "kill_on=300")) as engine:
        with pytest.raises(GenerationFailed) as poison:
            await collect(engine, request("p", tokens=(300,)))
        (stream,) = begin(engine, request("a", output=3000))
        await eventually(lambda: engine.status().running["interactive"] == 1)
    with pytest.raises(GenerationFailed, match="shutting down") as cut:
        await stream
    assert (poison.value.may_retry, cut.value.may_retry) == (False, True)
