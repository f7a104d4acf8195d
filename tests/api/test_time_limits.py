"""Time limits of a body; `exchanges/time_limits.txt` has those of an answer."""

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
from tests.api.serving import OPTIONS, api

pytestmark = pytest.mark.anyio


async def test_a_body_that_does_not_arrive_ends_with_408(engine: FakeEngine) -> None:
    app = api(engine, msgspec.structs.replace(OPTIONS, read_timeout_s=0.1))
    async with exchange(app, "/v1/chat/completions") as request:
        error = json.loads(await request.chunk() or b"")["error"]
    assert (request.status, error["code"]) == (408, "request_body_timeout")
    assert request.headers["connection"] == "close"


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


async def test_the_time_after_the_body_is_not_limited() -> None:
    now_s = 0.0

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    receive_in_time = paced(receive, 1.0, lambda: now_s)
    await receive_in_time()
    now_s = 100.0
    await receive_in_time()
