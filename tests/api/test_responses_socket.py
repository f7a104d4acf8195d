"""`/v1/responses` as a WebSocket, apart from `websockets/responses.txt`: keepalives and ends."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio.lowlevel
import msgspec
import pytest
from starlette.applications import Starlette

from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api
from tests.api.sockets import Socket, opened
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
CREATE = {"type": "response.create", "input": "hi", "max_output_tokens": 20}


def socket_of(app: Starlette) -> AbstractAsyncContextManager[Socket]:
    return opened(app, path="/v1/responses")


def quick(engine: FakeEngine) -> Starlette:
    """Build a server with frequent keepalives."""
    return api(engine, msgspec.structs.replace(OPTIONS, keep_alive_s=0.01))


async def until(socket: Socket, *kinds: str) -> list[Json]:
    """All events up to the first of these kinds."""
    events = [await socket.next()]
    while events[-1]["type"] not in kinds:
        events.append(await socket.next())
    return events


async def test_keepalives_can_be_switched_off() -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    async with socket_of(api(engine, msgspec.structs.replace(OPTIONS, keep_alive_s=0))) as socket:
        socket.send(CREATE)
        await socket.next()
        for _ in range(100):  # keepalives without a pause would come at each turn of the event loop
            await anyio.lowlevel.checkpoint()
        engine.goes_on.set()
        events = await until(socket, "response.completed")
    assert sum(event["type"] == "response.in_progress" for event in events) <= 1


async def test_a_waiting_response_sends_keepalives() -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    async with socket_of(quick(engine)) as socket:
        socket.send(CREATE)
        events = await until(socket, "response.in_progress") + await until(socket, "response.in_progress")
        engine.goes_on.set()
        events += await until(socket, "response.completed")
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("limits", [{"max_socket_requests": 1}, {"max_body_bytes": 250}])
async def test_waiting_messages_are_limited_in_number_and_size(limits: dict[str, int]) -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    app = api(engine, msgspec.structs.replace(OPTIONS, keep_alive_s=0, **limits))
    async with socket_of(app) as socket:
        socket.send(CREATE)
        await until(socket, "response.created")
        for _ in range(2):
            socket.send({**CREATE, "instructions": "x" * 100})
        (refused,) = await until(socket, "error")
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
        engine.goes_on.set()
        await until(socket, "response.completed")
        await until(socket, "response.completed")


async def test_a_closed_socket_ends_its_response() -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    async with socket_of(quick(engine)) as socket:
        socket.send(CREATE)
        await until(socket, "response.in_progress")
        socket.close()
        await eventually(lambda: engine.requests() == [])


async def test_a_cancelled_response_fails() -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    async with socket_of(quick(engine)) as socket:
        socket.send(CREATE)
        first_events = await until(socket, "response.in_progress")
        engine.cancel(first_events[0]["response"]["id"])
        last_events = await until(socket, "response.failed")
        assert last_events[-2]["type"] == "error"
