"""`/v1/responses` as a WebSocket, beside what `websockets/responses.txt` has: signs of life and ends."""

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
    """A server whose streams soon show that they live."""
    return api(engine, msgspec.structs.replace(OPTIONS, keep_alive_s=0.01))


async def until(socket: Socket, *kinds: str) -> list[Json]:
    """All events up to the first of these kinds."""
    found = [await socket.next()]
    while found[-1]["type"] not in kinds:
        found.append(await socket.next())
    return found


async def test_signs_of_life_may_be_switched_off() -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    async with socket_of(api(engine, msgspec.structs.replace(OPTIONS, keep_alive_s=0))) as socket:
        socket.send(CREATE)
        await socket.next()
        for _ in range(100):  # signs without a pause would come at each turn of the event loop
            await anyio.lowlevel.checkpoint()
        engine.goes_on.set()
        found = await until(socket, "response.completed")
    assert sum(event["type"] == "response.in_progress" for event in found) <= 1


async def test_who_waits_sees_that_it_lives() -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    async with socket_of(quick(engine)) as socket:
        socket.send(CREATE)
        found = await until(socket, "response.in_progress") + await until(socket, "response.in_progress")
        engine.goes_on.set()
        found += await until(socket, "response.completed")
    kinds = [one["type"] for one in found]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert [one["sequence_number"] for one in found] == list(range(len(found)))


@pytest.mark.parametrize("limits", [{"max_socket_requests": 1}, {"max_body_bytes": 250}])
async def test_messages_that_wait_are_few_and_small(limits: dict[str, int]) -> None:
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


async def test_who_closes_ends_the_response() -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    async with socket_of(quick(engine)) as socket:
        socket.send(CREATE)
        await until(socket, "response.in_progress")
        socket.close()
        await eventually(lambda: engine.requests() == [])


async def test_who_is_cancelled_hears_of_a_failure() -> None:
    engine = FakeEngine(text="Hello", is_held=True)
    async with socket_of(quick(engine)) as socket:
        socket.send(CREATE)
        begun = await until(socket, "response.in_progress")
        engine.cancel(begun[0]["response"]["id"])
        found = await until(socket, "response.failed")
        assert found[-2]["type"] == "error"
