"""A call's time ends: by its own limit, by the server's; also while it waits, and while its body comes."""

from __future__ import annotations

import json

import anyio
import msgspec
import pytest
from starlette.types import Message

from openai_cpu_server.errors import BodyTooSlow
from openai_cpu_server.http.body import paced
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api, client, num_live
from tests.api.talking import chat, error_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def held() -> FakeEngine:
    return FakeEngine(is_held=True)


async def test_a_stream_that_takes_too_long_ends_with_one_error(held: FakeEngine) -> None:
    async with client(api(held)) as http:
        answer = await chat(http, timeout=0.05, stream=True, n=2)
    assert answer.status_code == 200
    assert answer.text.startswith("event: error\ndata: ")
    assert answer.text.count("request_timeout") == answer.text.count("event: error") == 1
    assert "[DONE]" not in answer.text
    assert num_live(held) == 0


@pytest.mark.parametrize(
    ("server_s", "client_s", "said"), [(0.05, None, "0.05"), (0.05, 60, "0.05"), (60, 0.02, "0.02")]
)
async def test_an_answer_beyond_the_shorter_limit_is_408(
    held: FakeEngine, server_s: float, client_s: float | None, said: str
) -> None:
    async with client(api(held, msgspec.structs.replace(OPTIONS, request_timeout_s=server_s))) as http:
        answer = await chat(http, timeout=client_s)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (408, "false")
    error = error_of(answer)
    assert (error["param"], error["code"]) == (None, "request_timeout")
    assert error["message"] == f"The request was not done within {said} seconds."
    assert num_live(held) == 0


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
            await anyio.sleep_forever()
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
