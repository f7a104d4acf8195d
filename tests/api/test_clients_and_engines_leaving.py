"""Streams whose client disconnects or whose engine is killed, resumed streams, and keys whose requests crash
engines."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.generation.event_log import EventLog
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.http.keys import KeyRing
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, api, client, locked_api, new_engine, num_live, running, served, started
from tests.api.sockets import connected
from tests.api.talking import MESSAGES, error_by_path, error_of
from tests.gates import Gate
from tests.waiting import eventually

CHAT = "/v1/chat/completions"
pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


async def test_a_stream_comes_chunk_by_chunk_and_is_kept_alive_between(engine: FakeEngine) -> None:
    engine.goes_on.clear()
    app = api(engine, msgspec.structs.replace(OPTIONS, keep_alive_s=0.001))
    body = {"prompt": "hi", "ignore_eos": True, "max_tokens": 3, "stream": True}
    async with exchange(app, "/v1/completions", body) as one:
        assert [await one.chunk() for _ in range(3)] == [b": keep-alive\n"] * 3
        engine.goes_on.set()
        chunks = [chunk for chunk in await one.rest() if chunk != b": keep-alive\n"]
    assert len(chunks) >= 3, "each token has a chunk"
    assert (one.headers["cache-control"], one.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert chunks[-1].endswith(b"data: [DONE]\n\n")


async def test_a_batch_ends_when_its_client_leaves(engine: FakeEngine) -> None:
    engine.goes_on.clear()
    async with exchange(api(engine), "/v1/generate/batch", {"prompts": ["a"] * 200}) as one:
        await eventually(lambda: num_live(engine) == 64)
        one.disconnect()
    assert num_live(engine) == 0


# -- streams that are resumed --------------------------------------------------------------------------------


LONG_CHAT = {"messages": MESSAGES, "ignore_eos": True, "stream": True, "max_tokens": 60, "temperature": 0}
MINE = {"x-conversation-id": "mine"}


async def resume(app: Starlette, name: str, last: str | None = None, key: str = "") -> httpx.Response:
    headers = {**(of(key) if key else {}), **({} if last is None else {"last-event-id": last})}
    async with client(app, headers) as http:
        return await http.get(f"{CHAT}/{name}/stream")


def ids(stream: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"^id: (\d+)$", stream, re.MULTILINE)]


def content(stream: bytes) -> str:
    chunks = [json.loads(each) for each in re.findall(rb"^data: (\{.*)$", stream, re.MULTILINE)]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


@pytest.fixture
async def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "steps", 20)


@pytest.fixture
async def held(gate: Gate) -> AsyncIterator[EngineClient]:
    async with running(new_engine(gate.steps)) as engine:
        yield engine
        gate.open()


async def test_a_stream_runs_without_its_client_and_its_rest_can_be_resumed(
    held: EngineClient, gate: Gate
) -> None:
    """The engine is killed after the client has disconnected."""
    app = api(held)
    first = b""
    async with exchange(app, CHAT, LONG_CHAT, MINE) as one:
        while first.count(b"id: ") < 5:
            first += await one.chunk() or b""
        one.disconnect()
    assert num_live(held) == 1
    assert held.engine_pid is not None
    os.kill(held.engine_pid, signal.SIGKILL)
    gate.open()
    name = json.loads(first.split(b"data: ")[1].split(b"\n")[0])["id"]
    rest = await resume(app, "mine", str(ids(first)[-1]))
    assert rest.headers["content-type"].startswith("text/event-stream")
    assert rest.text.endswith("data: [DONE]\n\n")
    whole = first + rest.content
    assert ids(whole) == [*range(len(ids(whole)))]
    async with client(app) as http:
        plain = (await http.post(CHAT, json={**LONG_CHAT, "stream": False})).json()
    assert content(whole) == plain["choices"][0]["message"]["content"]
    again = await resume(app, name)
    assert [line for line in again.text.split("\n") if line[:1] != ":"] == [
        line for line in whole.decode().split("\n") if line[:1] != ":"
    ]
    assert num_live(held) == 0
    async with client(app) as http:
        metrics = (await http.get("/metrics")).text
    assert 'ocs_kept_streams{state="ended"} 1.0' in metrics
    assert "ocs_streams_taken_up_total 2.0" in metrics
    num_bytes = len(re.sub(r"(?m)^:.*\n(\n)?", "", again.text).encode())
    assert f"ocs_kept_stream_bytes {float(num_bytes)}" in metrics


@pytest.mark.parametrize("keep_s", [0.0, 0.2])
async def test_a_stream_that_is_not_resumed_in_time_ends(keep_s: float) -> None:
    """With 0 it ends with its connection."""
    engine = FakeEngine(is_held=True)
    app = api(engine, msgspec.structs.replace(OPTIONS, keep_streams_s=keep_s))
    async with started(app, engine, CHAT, LONG_CHAT, MINE):
        pass
    assert keep_s or num_live(engine) == 0
    await eventually(lambda: num_live(engine) == 0)
    assert (await resume(app, "mine")).status_code == 404


async def test_a_stream_belongs_to_its_key_and_a_new_one_replaces_it(tmp_path: Path) -> None:
    engine = FakeEngine(is_held=True)
    app = locked_api(engine, key_ring(tmp_path, ann="", bob="", root='scopes = ["inference", "admin"]'))
    calls = []
    for _ in range(2):
        async with exchange(app, CHAT, LONG_CHAT, {**of("ann"), **MINE}) as one:
            await eventually(lambda: any(live.id not in calls for live in engine.requests()))
            one.disconnect()
        calls.append(engine.requests()[0].id)
        assert num_live(engine) == 1
    for other in ("bob", "root"):
        assert error_of(await resume(app, "mine", key=other))["code"] == "request_not_found"
    async with client(app, of("ann")) as http:
        assert (await http.delete(f"{CHAT}/mine")).status_code == 200
        stream = await http.get(f"{CHAT}/mine/stream")
        assert stream.text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"stop"' in stream.text
        assert (await http.delete(f"{CHAT}/mine")).status_code == 200
    assert (await resume(app, "mine", key="ann")).status_code == 404


async def test_too_many_streams_are_refused() -> None:
    engine = FakeEngine(is_held=True)
    app = api(engine)
    async with client(app) as http:
        for number in range(32):
            async with exchange(app, CHAT, LONG_CHAT, {"x-conversation-id": f"c{number}"}) as one:
                await eventually(lambda: num_live(engine) > number)  # noqa: B023 (it is awaited here)
                one.disconnect()
        refused = await http.post(CHAT, json=LONG_CHAT, headers=MINE)
        assert refused.status_code == 429
        for number in range(32):
            await http.delete(f"/v1/stream?conv_id=c{number}")
    assert num_live(engine) == 0


async def test_the_oldest_events_of_a_long_stream_are_dropped() -> None:
    log = EventLog(most_bytes=30)
    reading = log.read(0)
    log.append(b"0" * 10)
    assert await anext(reading) == b"0" * 10
    for number in range(1, 6):
        log.append(b"%d" % number * 10)
    assert [event async for event in reading] == []
    log.end()
    assert [event async for event in log.read(4)] == [b"4" * 10, b"5" * 10]
    assert [event async for event in log.read_bytes(45)] == [b"4" * 5, b"5" * 10]
    assert (log.first, log.held_bytes, log.total_bytes) == (3, 30, 60)
    assert [log.has_byte(each) for each in (29, 30, 60, 61)] == [False, True, True, False]


# -- a key whose requests crash the engine is refused in all APIs, and other keys are served -----------------


KILL = f"kill_on={2 + ord('~')}"
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "TEXT"}]},
    "/v1/completions": {"prompt": "TEXT"},
    "/v1/messages": {"messages": [{"role": "user", "content": "TEXT"}], "max_tokens": 4},
    "/v1/generate": {"prompt": "TEXT"},
    "/generate": {"prompt": "TEXT"},
}


def body(path: str, text: str) -> dict[str, object]:
    fields = json.loads(json.dumps(BODIES[path]).replace("TEXT", text))
    return {"max_tokens": 4, "temperature": 0, **fields}


@pytest.fixture
async def mortal() -> AsyncIterator[EngineClient]:
    async with running(new_engine(KILL)) as engine:
        yield engine


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    return key_ring(tmp_path, ann="", bob="")


async def post(http: httpx.AsyncClient, path: str, text: str, name: str) -> httpx.Response:
    return await http.post(path, json=body(path, text), headers=of(name))


async def test_a_key_that_crashes_engines_is_refused_in_all_apis(mortal: EngineClient, keys: KeyRing) -> None:
    app = create_api(served(mortal), OPTIONS, keys=keys).app
    async with client(app) as http:
        for path in ("/v1/messages", "/v1/generate"):
            killed = await post(http, path, "~", "ann")
            assert killed.status_code == 500
            assert killed.headers["x-should-retry"] == "false", "SDKs repeat a 500"
        for path in BODIES:
            refused = await post(http, path, "~", "ann")
            assert refused.status_code == 429, path
            assert error_by_path(refused).get("code", "too_many_crashes") == "too_many_crashes"
            assert 0 < int(refused.headers["retry-after"]) <= 600
            assert (await post(http, path, "hi", "bob")).status_code == 200
        assert (await post(http, "/v1/completions", "hi", "ann")).status_code == 429
        async with connected(app, of("ann")) as socket:
            await socket.accepted()
            socket.ask("a")
            (end,) = (await socket.until_end("a"))["a"]
            assert (end["status"], end["error"]["code"]) == (429, "too_many_crashes")
        assert (await http.get("/ready")).status_code == 200
        assert mortal.status().restarts == 4


async def test_rows_that_crash_the_engine_count_and_later_rows_wait(
    mortal: EngineClient, keys: KeyRing
) -> None:
    api = create_api(served(mortal), OPTIONS, keys=keys)
    path = "/v1/completions"
    good, bad = (json.dumps(body(path, text)).encode() for text in ("hi", "~"))
    for row, status in ((good, 200), (bad, 500), (good, 200), (bad, 500)):
        answer = await api.run_row(path, row, "ann")
        assert (answer.status, answer.retry_after_s, answer.pauses) == (status, None, False)
    put_off = await api.run_row(path, good, "ann")
    assert (put_off.status, put_off.pauses) == (429, True)
    assert put_off.retry_after_s is not None
    assert 0 < put_off.retry_after_s <= 600
    assert (await api.run_row(path, good, "bob")).status == 200
    async with client(api.app) as http:
        assert (await post(http, path, "hi", "ann")).status_code == 429
