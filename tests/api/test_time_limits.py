"""A call's time ends: by its own limit, by the server's; also while it waits, and while its body comes."""

from __future__ import annotations

import asyncio
import json

import httpx
import msgspec
import pytest
from starlette.types import Message

from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.errors import BodyTooSlow
from openai_cpu_server.http.body import paced
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api, busy, client, num_live
from tests.api.talking import chat, error_of
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_an_answer_that_takes_too_long_is_408(slow_engine: EngineClient) -> None:
    async with client(api(slow_engine)) as http:
        answer = await chat(http, max_tokens=4000, ignore_eos=True, timeout=0.2)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (408, "false")
    assert error_of(answer) == {
        "message": "The request was not done within 0.2 seconds.",
        "type": "server_error",
        "param": None,
        "code": "request_timeout",
    }
    assert num_live(slow_engine) == 0
    await eventually(lambda: slow_engine.status().kv_tokens_used == 0)


async def test_a_stream_that_takes_too_long_ends_with_an_error(slow_engine: EngineClient) -> None:
    async with client(api(slow_engine)) as http:
        answer = await chat(http, max_tokens=4000, ignore_eos=True, timeout=0.3, stream=True, n=2)
    assert answer.status_code == 200
    *chunks, last = answer.text.strip().split("\n\n")
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.split("data: ")[1])["error"]["code"] == "request_timeout"
    assert len(chunks) > 2
    assert "[DONE]" not in answer.text
    assert answer.text.count("event: error") == 1
    assert num_live(slow_engine) == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_waiting_counts(stream: bool) -> None:
    async with busy() as engine, client(api(engine)) as http:
        answer = await chat(http, timeout=0.2, stream=stream)
        assert "request_timeout" in answer.text
        assert num_live(engine) == 1


@pytest.mark.parametrize(
    ("server_s", "client_s", "said"), [(0.2, None, "0.2"), (0.2, 60, "0.2"), (60, 0.1, "0.1")]
)
async def test_the_shorter_limit_counts(
    slow_engine: EngineClient, server_s: float, client_s: float | None, said: str
) -> None:
    options = msgspec.structs.replace(OPTIONS, request_timeout_s=server_s)
    async with client(api(slow_engine, options)) as http:
        answer = await chat(http, max_tokens=4000, ignore_eos=True, timeout=client_s)
    assert f"within {said} seconds" in answer.text


async def test_an_answer_in_time_is_not_touched(engine: FakeEngine) -> None:
    async with client(api(engine)) as http:
        assert (await chat(http, timeout=60)).status_code == 200


@pytest.mark.parametrize("value", [0, -1, "5", True])
async def test_a_limit_that_is_none(http: httpx.AsyncClient, value: object) -> None:
    answer = await chat(http, timeout=value)
    assert (answer.status_code, error_of(answer)["param"]) == (400, "timeout")


async def test_a_body_that_does_not_come(engine: FakeEngine) -> None:
    app = api(engine, msgspec.structs.replace(OPTIONS, read_timeout_s=0.1))
    async with exchange(app, "/v1/chat/completions") as one:
        error = json.loads(await one.chunk() or b"")["error"]
    assert (one.status, error["code"]) == (408, "request_body_timeout")
    assert one.headers["connection"] == "close"


async def test_each_kib_of_a_body_buys_a_second() -> None:
    now_s = 0.0
    pieces = iter([1024, 10])

    async def receive() -> Message:
        while (piece := next(pieces, None)) is None:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": b"x" * piece, "more_body": True}

    receive_in_time = paced(receive, 1.0, lambda: now_s)
    await receive_in_time()
    now_s = 1.9
    await receive_in_time()
    now_s = 2.1
    with pytest.raises(BodyTooSlow):
        await receive_in_time()


async def test_behind_the_body_one_may_wait() -> None:
    now_s = 0.0

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    receive_in_time = paced(receive, 1.0, lambda: now_s)
    await receive_in_time()
    now_s = 100.0
    await receive_in_time()


async def test_prompt_and_output_are_bounded_by_the_server(engine: FakeEngine) -> None:
    options = msgspec.structs.replace(OPTIONS, max_prompt_tokens=10, max_output_tokens=6)
    async with client(api(engine, options)) as http:
        long = await http.post("/v1/completions", json={"prompt": "x" * 20})
        assert (long.status_code, error_of(long)["code"]) == (400, "context_length_exceeded")
        assert error_of(long)["param"] == "prompt"
        much = await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 7})
        assert (much.status_code, error_of(much)["param"]) == (400, "max_tokens")
        none = await http.post("/v1/completions", json={"prompt": "x", "ignore_eos": True})
        assert none.json()["usage"]["completion_tokens"] == 6
