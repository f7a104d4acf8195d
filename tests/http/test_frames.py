"""WebSocket frames at the protocol, with a transport that never sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from anyio.lowlevel import checkpoint
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from openai_cpu_server.http.body import BodyBudget, BodyQuota
from openai_cpu_server.http.frames import LimitedSocket
from openai_cpu_server.http.server import Complaints, ConnectionLimits, limited
from tests.waiting import eventually
from tests.wire import frame, handshake

pytestmark = pytest.mark.anyio


class FullTransport(asyncio.Transport):
    """Collect the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.has_failed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.has_failed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


received: list[str] = []
"""Types of the events that the application has received."""


async def accept(scope: Scope, receive: Receive, send: Send) -> None:
    received.clear()
    await send({"type": "websocket.accept"})
    while "websocket.disconnect" not in received:
        received.append((await receive())["type"])


@pytest.fixture
async def opened() -> AsyncIterator[tuple[LimitedSocket, FullTransport]]:
    config = uvicorn.Config(accept, log_config=None)
    config.load()
    limits = ConnectionLimits(
        max_connections=9,
        read_timeout_s=60,
        write_timeout_s=60,
        messages=lambda: BodyQuota(BodyBudget(1_000_000), 1_000_000),
        complaints=Complaints(),
    )
    socket = limited(LimitedSocket, limits)(config, ServerState(), {})  # type: ignore[call-arg]
    assert isinstance(socket, LimitedSocket)
    transport = FullTransport()
    socket.connection_made(transport)
    socket.data_received(handshake())
    await eventually(lambda: b" 101 " in transport.written)
    transport.written.clear()
    yield socket, transport
    socket.connection_lost(None)


async def test_pongs_for_a_client_that_does_not_read_are_not_kept(
    opened: tuple[LimitedSocket, FullTransport],
) -> None:
    socket, transport = opened
    socket.pause_writing()
    for _ in range(1000):
        socket.data_received(frame(9, b"lost"))
    assert not transport.written
    socket.resume_writing()
    socket.data_received(frame(9, b"owed"))
    assert transport.written == b"\x8a\x04owed"
    transport.has_failed = True
    socket.data_received(frame(9, b"gone"))
    assert transport.written == b"\x8a\x04owed"


async def test_small_frames_are_read_in_turns_of_bounded_size(
    opened: tuple[LimitedSocket, FullTransport],
) -> None:
    socket, transport = opened
    assert isinstance(socket, asyncio.BufferedProtocol)
    data = frame(9, b"a") * 10_000
    while data:
        buffer = socket.get_buffer(-1)
        piece, data = data[: len(buffer)], data[len(buffer) :]
        assert len(piece) <= 16 * 1024
        buffer[: len(piece)] = piece
        socket.buffer_updated(len(piece))
    assert transport.written == b"\x8a\x01a" * 10_000


async def test_others_get_their_turn_between_messages_that_wait(
    opened: tuple[LimitedSocket, FullTransport],
) -> None:
    socket, _ = opened
    num_before = len(received)
    socket.data_received(frame(1, b"") * 100)
    seen = set[int]()
    while len(received) < num_before + 100:
        await checkpoint()
        seen.add(len(received))
    assert len(seen) > 50


@pytest.mark.parametrize("payload", [b"", b"?" * 125])
async def test_pings_between_the_pieces_of_a_message_are_answered(
    opened: tuple[LimitedSocket, FullTransport], payload: bytes
) -> None:
    socket, transport = opened
    socket.data_received(frame(1, b"{", fin=False) + frame(9, payload) + frame(0, b"}"))
    assert transport.written == bytes([0x8A, len(payload)]) + payload
