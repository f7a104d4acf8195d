"""Streams as they go, and what happens when either side goes."""

from __future__ import annotations

import json
import os
import signal

import anyio
import msgspec
import openai
import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.engine_client.client import EngineClient
from tests.api.asgi import exchange
from tests.api.serving import OPTIONS, api, busy, client, eventually, new_engine, num_live, running, waiting
from tests.api.talking import MESSAGES, chat

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_takes_its_request_along(slow_engine: EngineClient, stream: bool) -> None:
    body = {"messages": MESSAGES, "ignore_eos": True, "stream": stream, "n": 2}
    async with exchange(api(slow_engine), "/v1/chat/completions", body) as one:
        await eventually(lambda: slow_engine.status().running["interactive"] == 2)
        if stream:
            assert await one.chunk()
        one.disconnect()
    assert num_live(slow_engine) == 0
    await eventually(lambda: slow_engine.status().kv_tokens_used == 0)


async def test_a_stream_comes_chunk_by_chunk_and_is_kept_alive_between(slow_engine: EngineClient) -> None:
    app = api(slow_engine, msgspec.structs.replace(OPTIONS, keep_alive_s=0.001))
    body = {"prompt": "hi", "ignore_eos": True, "max_tokens": 3, "stream": True}
    async with exchange(app, "/v1/completions", body) as one:
        chunks = await one.rest()
    said = [chunk for chunk in chunks if chunk != b": keep-alive\n"]
    assert 3 <= len(said) < len(chunks)  # each token is one
    assert said[-1].endswith(b"data: [DONE]\n\n")


async def test_an_engine_that_goes_ends_a_stream_with_an_error() -> None:
    engine = new_engine("step_s=0.02")
    async with running(engine):
        body = {"messages": MESSAGES, "ignore_eos": True, "stream": True}
        async with exchange(api(engine), "/v1/chat/completions", body, {"x-request-id": "r1"}) as one:
            assert b'"role":"assistant"' in (await one.chunk() or b"")
            await engine.close()
            chunks = await one.rest()
    assert chunks[-1] == (
        b'event: error\ndata: {"error":{"message":"The server is shutting down.","type":"server_error",'
        b'"param":null,"code":"generation_failed"}}\n\n'
    )
    assert one.status == 200


async def test_an_engine_that_goes_fails_a_whole_response() -> None:
    engine = new_engine("step_s=0.02")
    async with running(engine):
        body = {"messages": MESSAGES, "ignore_eos": True}
        async with exchange(api(engine), "/v1/chat/completions", body) as one:
            await eventually(lambda: num_live(engine) == 1)
            await engine.close()
            data = await one.chunk() or b""
    assert one.status == 500
    assert json.loads(data)["error"]["code"] == "generation_failed"


async def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    async with busy() as engine:
        for stream in (True, False):
            async with waiting(engine, stream=stream) as second:
                second.disconnect()
            assert engine.status().waiting["interactive"] == 0
            assert num_live(engine) == 1


async def test_the_sdk_raises_what_ends_a_stream_early() -> None:
    engine = new_engine("step_s=0.02")
    async with running(engine), client(api(engine)) as http, anyio.create_task_group() as tasks:
        sdk = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)

        async def close_once_it_runs() -> None:
            await eventually(lambda: engine.status().kv_tokens_used > 0)
            await engine.close()

        tasks.start_soon(close_once_it_runs)
        stream = await sdk.completions.create(
            model="fake", prompt="hi", stream=True, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.APIError, match="shutting down") as caught:
            async for _ in stream:
                pass
    assert caught.value.code == "generation_failed"


async def test_the_sdk_does_not_repeat_what_kills_the_engine() -> None:
    """By itself it sends what got a 500 twice again: together enough crashes to give the engine up."""
    async with running(new_engine("kill_on=300")) as engine, client(api(engine)) as http:
        sdk = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http)
        assert sdk.max_retries == 2
        with pytest.raises(openai.InternalServerError, match="died each time") as caught:
            await sdk.completions.create(model="fake", prompt=[2, 3, 300])
        assert caught.value.response.headers["x-should-retry"] == "false"
        await eventually(lambda: engine.state is EngineState.READY)
        ready = await http.get("/ready")
    assert (ready.status_code, ready.json()["restarts"]) == (200, 2)


async def test_a_crash_is_a_pause_for_clients_and_not_ready_for_machines() -> None:
    async with running(new_engine()) as engine, client(api(engine)) as http:
        before = (await chat(http)).json()
        pid = engine.engine_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: engine.state is EngineState.RESTARTING)
        ready, health = await http.get("/ready"), await http.get("/health")
        after = await chat(http)
    assert (ready.status_code, ready.json()["status"]) == (503, "restarting")
    assert "retry-after" in ready.headers
    assert ready.json()["error"]["code"] == "engine_unavailable"
    assert (health.status_code, health.json()["restarts"]) == (200, 1)
    assert after.status_code == 200
    assert after.json()["choices"] == before["choices"]
