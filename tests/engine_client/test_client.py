"""Dispatcher and supervisor against a real engine process; only its backend is a fake."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openai_cpu_server.contract.engine import EngineState, RequestState
from openai_cpu_server.contract.messages import EngineOptions, Finish, FinishReason, Scheduling, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.engine_client.child import HangLimits
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.deaths import MemoryKiller
from openai_cpu_server.engine_client.supervisor import NextOptions, Supervisor
from openai_cpu_server.errors import EngineUnavailable, GenerationFailed, RequestCancelled, StartupError
from tests.fake_engine import COMMAND
from tests.fakes import END_TOKEN, FakeBackend
from tests.gates import Gate, suspended
from tests.scheduler.driver import alone, request
from tests.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


_SUPERVISOR_OPTIONS = {"hang_limits", "memory_killer", "clock", "partner", "begins_asleep", "foretold"}


def client(*flags: str, **fields: Any) -> EngineClient:
    supervisor_options = {name: fields.pop(name) for name in _SUPERVISOR_OPTIONS & fields.keys()}
    options = EngineOptions(
        **{"model_path": "", "max_seqs": 8, "kv_tokens": 4096, "calibrate": "start", **fields}
    )
    return EngineClient(Supervisor((*COMMAND, *flags), options, **supervisor_options), max_queue=1000)


class Ticks:
    """Clock of a supervisor that advances by `pace_s` with each look, and not otherwise."""

    def __init__(self, pace_s: float = 0.0) -> None:
        self.pace_s = pace_s
        self.now_s = 0.0
        self.num_looks = 0

    def __call__(self) -> float:
        self.num_looks += 1
        self.now_s += self.pace_s
        return self.now_s

    async def pass_looks(self, number: int) -> None:
        end = self.num_looks + number
        await eventually(lambda: self.num_looks >= end)


@asynccontextmanager
async def running(engine: EngineClient) -> AsyncIterator[EngineClient]:
    task = asyncio.create_task(engine.run())
    try:
        await until(engine, EngineState.READY)
        yield engine
    finally:
        await engine.close()
        await task


async def until(engine: EngineClient, state: EngineState) -> None:
    await eventually(lambda: engine.state is state)


async def collect(engine: EngineClient, *requests: GenerationRequest) -> list[TokenEvent]:
    async with engine.generate(requests) as generation:
        return [event async for event in generation]


@asynccontextmanager
async def endless(engine: EngineClient, name: str, **fields: object) -> AsyncIterator[list[TokenEvent]]:
    events: list[TokenEvent] = []

    async def read() -> None:
        async with engine.generate([request(name, output=3000, **fields)]) as generation:
            async for event in generation:
                events.append(event)

    reading = asyncio.create_task(read())
    try:
        yield events
    finally:
        reading.cancel()
        await asyncio.wait([reading])


def expected_text(one: GenerationRequest) -> str:
    tokens = alone(one)
    if END_TOKEN in tokens:
        tokens = tokens[: tokens.index(END_TOKEN)]
    return b"".join(FakeBackend().piece(t) for t in tokens).decode(errors="replace")


def text(events: list[TokenEvent]) -> str:
    return "".join(event.text for event in events)


def finish_of(events: list[TokenEvent]) -> Finish:
    *before, last = events
    assert not any(event.finish for event in before)
    return last.finish


def kill_engine(engine: EngineClient, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(engine.engine_pid, number)


def begin(engine: EngineClient, *requests: GenerationRequest) -> list[asyncio.Task[list[TokenEvent]]]:
    return [asyncio.create_task(collect(engine, one)) for one in requests]


async def are_whole(
    streams: list[asyncio.Task[list[TokenEvent]]], requests: Sequence[GenerationRequest]
) -> bool:
    results = await asyncio.gather(*streams)
    return [text(events) for events in results] == [expected_text(one) for one in requests]


async def await_deaths(engine: EngineClient, number: int) -> None:
    await eventually(lambda: engine.status().restarts >= number)


def num_tokens(engine: EngineClient) -> int:
    return sum(live.output_tokens for live in engine.requests())


async def advance(engine: EngineClient, gate: Gate, num: int) -> None:
    """Let the `num` requests that wait at the closed gate get some tokens, and hold the engine again."""
    await eventually(lambda: len(engine.requests()) == num)
    gate.allow(16)
    await eventually(lambda: [live.output_tokens > 3 for live in engine.requests()] == [True] * num)


async def is_served(engine: EngineClient, one: GenerationRequest) -> bool:
    return await are_whole(begin(engine, one), [one])


async def test_tokens_arrive_one_by_one_until_a_stop_string_and_choices_interleaved() -> None:
    whole = expected_text(request("a", output=50))
    async with running(client()) as engine:
        async with engine.generate([request("a", output=6)]) as generation:
            events = [event async for event in generation]
        finish, timings = finish_of(events), generation.figures
        assert text(events) == expected_text(request("a", output=6))
        assert (finish.reason, finish.output_tokens) == (FinishReason.LENGTH, 6)
        parts_ms = timings.queue_ms + timings.prefill_ms + timings.generation_ms
        assert parts_ms == pytest.approx(timings.latency_ms)
        assert min(timings.prefill_ms, timings.generation_ms, timings.tokens_per_second) > 0
        assert timings.output_tokens == 6
        events = await collect(engine, request("a", output=50, stop=(whole[7:10],)))
        assert text(events) == whole[: whole.index(whole[7:10])]
        assert finish_of(events).reason is FinishReason.STOP
        events = await collect(engine, request("a", output=5), request("b", output=5))
        assert {event.id for event in events[:4]} == {"a", "b"}
        assert sum(event.finish is not None for event in events) == 2
        pid = engine.engine_pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_leaving_a_generation_frees_its_cells() -> None:
    async with running(client("step_s=0.01")) as engine:
        async with engine.generate([request("a", output=3000)]) as generation:
            async for _ in generation:
                break
            assert engine.status().kv_tokens_used > 0
        await collect(engine, request("b", output=3))
        assert engine.status().running == {"interactive": 0, "batch": 0}
        await collect(engine, request("c", output=1))
        assert engine.status().kv_tokens_used == 0


async def test_requests_are_listed_with_their_states_and_places() -> None:
    async with running(client("step_s=0.02", max_seqs=1)) as engine:
        calls = [engine.generate([request(name, prompt=4, output=3000)]) for name in ("a/0", "b/0", "c/0")]
        await eventually(lambda: engine.requests()[-1].position is not None)
        first, second, third = engine.requests()
        assert [one.id for one in (first, second, third)] == ["a/0", "b/0", "c/0"]
        assert (first.state, first.position, first.first_token_ms) == (RequestState.RUNNING, None, None)
        assert (second.state, second.position) == (RequestState.WAITING, 1)
        assert (third.state, third.position) == (RequestState.WAITING, 2)
        assert third.first_token_ms >= second.first_token_ms > 0
        await eventually(lambda: engine.requests()[0].output_tokens > 2)
        assert engine.requests()[0].prompt_tokens == 4
        assert engine.requests()[0].age_s > engine.requests()[2].age_s > 0
        for generation in calls:
            async with generation:
                pass
        assert engine.requests() == []


async def test_cancelling_ends_one_call_alone(gate: Gate) -> None:
    async with running(client(gate.steps)) as engine:
        doomed = asyncio.create_task(collect(engine, *(request(f"a/{i}", output=3000) for i in (0, 1))))
        other = request("b/0", output=30)
        spared = begin(engine, other)
        await advance(engine, gate, 3)
        assert not engine.cancel("c")
        assert engine.cancel("a/1")
        assert not engine.cancel("a")
        with pytest.raises(RequestCancelled):
            await doomed
        gate.open()
        assert await are_whole(spared, [other])
        await eventually(lambda: engine.status().kv_tokens_used == 0)


async def test_calls_can_be_made_and_cancelled_while_the_engine_restarts(gate: Gate, door: Gate) -> None:
    async with running(client(door.loads, gate.steps)) as engine:
        other, late = request("b/0", output=30), request("late")
        doomed, spared = begin(engine, request("a/0", output=3000), other)
        await advance(engine, gate, 2)
        door.close()
        kill_engine(engine)
        await until(engine, EngineState.RESTARTING)
        assert {one.state for one in engine.requests()} == {RequestState.WAITING}
        assert engine.kv_stats() is None
        with pytest.raises(EngineUnavailable):
            engine.clear_cache()
        assert engine.cancel("a")
        with pytest.raises(RequestCancelled):
            await doomed
        streams = [spared, *begin(engine, late)]
        door.open()
        gate.open()
        assert await are_whole(streams, [other, late])


async def test_the_cache_is_reported_and_cleared() -> None:
    prompt = tuple(range(2, 202))
    async with running(client(cache_bytes=64 * 100)) as engine:
        cached = []
        for name in ("a", "b"):
            events = await collect(engine, request(name, tokens=prompt, output=2))
            cached.append(finish_of(events).cached_tokens)
        assert cached[0] == 0 < cached[1] < 200
        await eventually(lambda: engine.status().kv_tokens_used == 0)
        kv = engine.kv_stats()
        assert (kv.prompt_tokens, kv.cached_tokens) == (400, cached[1])
        assert (kv.cache_blocks, kv.cache_capacity_blocks, kv.pool_blocks_used) == (4, 100, 0)
        engine.clear_cache()
        await eventually(lambda: engine.kv_stats().cache_blocks == 0)


async def test_a_start_reports_the_progress_of_its_measurement_and_accepts_no_requests() -> None:
    engine = client("timed=0.25", "build_s=1000")
    task = asyncio.create_task(engine.run())
    await eventually(lambda: engine.status().timed is not None)
    assert (engine.state, engine.status().loaded, engine.status().timed) == (EngineState.LOADING, 1.0, 0.25)
    with pytest.raises(EngineUnavailable):
        engine.generate([request("a")])
    await engine.close()
    await task


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("fail=no-such-file", "no-such-file"),
        ("load_s=1000", "no progress"),
        ("dies_measuring=1", r"while it timed steps \(--calibrate never"),
    ],
)
async def test_a_start_that_fails_reports_the_reason(flag: str, message: str) -> None:
    hangs = flag.startswith("load_s")
    with pytest.raises(StartupError, match=message):
        await client(flag, hang_limits=HangLimits(load_s=1), clock=Ticks(1.0 * hangs)).run()


async def test_a_request_beyond_the_pool_is_refused_by_the_engine_too() -> None:
    async with running(client(kv_tokens=256)) as engine:
        with pytest.raises(GenerationFailed, match="could not handle this request"):
            await collect(engine, request("a", prompt=200, output=100))
        assert len(await collect(engine, request("b"))) > 0


@pytest.mark.parametrize(
    ("flags", "message", "deaths"),
    [
        ((), "died each time", 2),
        (("kill_with=SIGKILL",), "the kernel's OOM killer", 3),  # a kill may have another cause
    ],
)
async def test_a_poisonous_request_fails_alone(
    flags: tuple[str, ...], message: str, deaths: int, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    innocent = [request(f"r{i}", output=30) for i in range(4)]
    async with running(client(gate.steps, "kill_on=300", *flags)) as engine:
        streams = begin(engine, *innocent)
        await advance(engine, gate, 4)
        (poison,) = begin(engine, request("poison", tokens=(2, 3, 300), output=5))
        await eventually(lambda: len(engine.requests()) == 5)
        gate.open()
        with pytest.raises(GenerationFailed, match=message):
            await poison
        assert await are_whole(streams, innocent)
        assert (engine.status().restarts, engine.state) == (deaths, EngineState.READY)
    assert [
        line for line in caplog.messages if line.startswith("recovered") and f"(deaths: {deaths}, " in line
    ]


async def test_an_engine_that_keeps_dying_is_given_up() -> None:
    async with running(client(clock=Ticks())) as engine:
        for number in range(1, 6):
            kill_engine(engine, signal.SIGSEGV)
            await await_deaths(engine, number)
            await until(engine, EngineState.READY if number < 5 else EngineState.FAILED)
        assert "5 crashes within a minute" in (engine.status().reason or "")
        with pytest.raises(EngineUnavailable) as caught:
            engine.generate([request("too late")])
        assert caught.value.retry_after_s == EngineState.DRAINING.retry_after_s > 1


async def test_signals_to_the_whole_group_do_not_end_the_engine() -> None:
    async with running(client()) as engine:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            kill_engine(engine, number)
            assert await is_served(engine, request("a"))
        assert engine.status().restarts == 0


async def test_a_stopped_engine_is_a_hang_and_its_streams_continue(gate: Gate) -> None:
    requests = [request(f"r{i}", output=60) for i in range(3)]
    ticks = Ticks()
    async with running(client(gate.steps, hang_limits=HangLimits(step_s=1), clock=ticks)) as engine:
        streams = begin(engine, *requests)
        await advance(engine, gate, 3)
        with suspended(engine.engine_pid):
            ticks.pace_s = 1.0
            await await_deaths(engine, 1)
        ticks.pace_s = 0.0
        gate.open()
        assert await are_whole(streams, requests)
        assert (engine.status().last_death.cause, engine.status().restarts) == ("hang", 1)


async def test_a_long_step_and_an_idle_engine_are_not_hangs(gate: Gate) -> None:
    """The predicted time of the step is 5 s, and the limit is 300 times that."""
    ticks = Ticks(1.0)
    limits = HangLimits(step_s=1)
    async with running(client("slow_curve=1", gate.steps, hang_limits=limits, clock=ticks)) as engine:
        await ticks.pass_looks(4)
        gate.close()
        (stream,) = begin(engine, request("a", output=3))
        await eventually(lambda: engine.status().running["interactive"] == 1)
        await ticks.pass_looks(4)
        gate.open()
        await stream
        assert engine.status().restarts == 0


async def test_an_engine_that_hangs_while_it_loads_is_started_again(door: Gate) -> None:
    ticks = Ticks()
    async with running(client(door.loads, hang_limits=HangLimits(load_s=1), clock=ticks)) as engine:
        door.close()
        kill_engine(engine)
        ticks.pace_s = 1.0
        await await_deaths(engine, 2)
        ticks.pace_s = 0.0
        door.open()
        await until(engine, EngineState.READY)
        assert engine.status().last_death.cause == "hang"


async def test_kills_after_progress_are_pauses_and_do_not_count_as_crashes(gate: Gate) -> None:
    requests = [request(f"r{i}", prompt=20 + i, output=150) for i in range(3)]
    gate.allow(16)
    async with running(client(gate.steps)) as engine:
        streams, before = begin(engine, *requests), 0
        for number in range(1, 7):
            await eventually(lambda before=before: num_tokens(engine) > before + 30)  # type: ignore[misc]
            before = num_tokens(engine)  # this process may send 17 more, not 30
            kill_engine(engine)
            await await_deaths(engine, number)
            await until(engine, EngineState.READY)
        gate.open()
        assert await are_whole(streams, requests)
        assert engine.status().restarts == 6
    assert {finish_of(stream.result()).output_tokens for stream in streams} == {150}


async def test_an_engine_that_keeps_running_out_of_memory_is_given_up(gate: Gate, tmp_path: Path) -> None:
    """Progress between the deaths does not matter. The kernel counts its victims in the file."""
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("oom_kill 0\n")
    killer = functools.partial(MemoryKiller, vmstat)
    gate.allow(16)
    async with running(client(gate.steps, memory_killer=killer, clock=Ticks())) as engine:
        assert engine.status().last_death is None
        (stream,), before = begin(engine, request("a", output=1000)), 0
        for number in range(1, 6):
            await eventually(lambda before=before: num_tokens(engine) > before + 9)  # type: ignore[misc]
            before = num_tokens(engine)
            vmstat.write_text(f"oom_kill {number}\n")
            kill_engine(engine)
            await await_deaths(engine, number)
            assert engine.status().last_death.cause == "out_of_memory"
        with pytest.raises(GenerationFailed, match=r"5 crashes within a minute.*ran out of memory"):
            await stream
        assert engine.state is EngineState.FAILED


@pytest.mark.parametrize("dies", [True, False])
async def test_draining_accepts_nothing_and_finishes_running_requests(dies: bool, gate: Gate) -> None:
    requests = [request("a", prompt=5, output=40), request("c", output=10)]
    async with running(client(gate.steps, max_seqs=1, scheduling=Scheduling(policy="fifo"))) as engine:
        streams = begin(engine, requests[0])
        await eventually(lambda: engine.status().running["interactive"] == 1)
        (refused,) = begin(engine, request("b", prompt=50, priority=Priority.BATCH))
        await eventually(lambda: len(engine.requests()) == 2)
        streams += begin(engine, requests[1])
        await eventually(lambda: len(engine.requests()) == 3)
        draining = asyncio.create_task(engine.drain(DEADLINE_S))
        with pytest.raises(EngineUnavailable, match="draining") as caught:
            await refused
        assert caught.value.retry_after_s == EngineState.DRAINING.retry_after_s
        assert engine.state is EngineState.DRAINING
        with pytest.raises(EngineUnavailable, match="draining"):
            engine.generate([request("too late")])
        if dies:
            kill_engine(engine)
        gate.open()
        assert await are_whole(streams, requests)
        await draining
        assert dies or engine.kv_stats().prompt_tokens == sum(len(one.tokens) for one in requests)


async def test_an_engine_that_dies_while_it_measures_costs_is_followed_by_one_that_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(client("dies_measuring=1", calibrate="idle")) as engine:
        await await_deaths(engine, 1)
        assert await is_served(engine, request("r", output=4))
    assert any("steps are no longer timed" in line for line in caplog.messages)
    following = NextOptions(EngineOptions(model_path="", calibrate="idle"))
    following.measure_nothing()
    assert following.options.calibrate == "never"
