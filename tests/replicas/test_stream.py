"""The connection between an API process and a replica: real TCP, a real engine process, a fake backend."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec
import pytest

from openai_cpu_server.contract.messages import LENGTH, Submit
from openai_cpu_server.replicas.wire import (
    DoorAddress,
    FrameStream,
    NewsFrame,
    ReplicaLost,
    SessionHello,
    encode_orders,
    read_news,
)
from tests.gates import Gate
from tests.replicas.test_host import check_stream, hosting, link, opened, remote
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


class Proxy:
    """Proxy to a door that can cut its connections, or stop forwarding while they stay open."""

    def __init__(self, door: DoorAddress) -> None:
        self._door = door
        self._writers: list[asyncio.StreamWriter] = []
        self.is_silent = False
        self.num_connections = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[DoorAddress]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        try:
            port: int = server.sockets[0].getsockname()[1]
            yield DoorAddress("127.0.0.1", port, self._door.token)
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        there_reader, there_writer = await asyncio.open_connection(self._door.address, self._door.port)
        self._writers += [writer, there_writer]
        await asyncio.gather(self._forward(reader, there_writer), self._forward(there_reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await _read_some(reader):
            if not self.is_silent:
                writer.write(data)
        writer.close()


async def _read_some(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(4096)
    except ConnectionError:
        return b""


async def test_a_cut_connection_is_made_again_and_nothing_is_lost_or_doubled(gate: Gate) -> None:
    async with hosting(gate.steps) as host, opened(host) as door:
        proxy = Proxy(door)

        def cut() -> None:
            proxy.cut()
            gate.open()

        async with proxy.open() as proxied, remote(proxied) as engine:
            await check_stream(engine, "a", at_5=cut)
            assert proxy.num_connections == 2


async def test_a_connection_that_falls_silent_is_given_up_and_another_replica_continues(gate: Gate) -> None:
    async with hosting(gate.steps, lease_s=1.0) as host, opened(host) as door:
        proxy = Proxy(door)

        def fall_silent() -> None:
            proxy.is_silent = True

        async with (
            hosting() as other,
            opened(other) as direct,
            proxy.open() as proxied,
            remote(proxied, lease_s=1.0) as engine,
        ):
            reading = asyncio.create_task(check_stream(engine, "a", at_5=fall_silent))
            engine.set_replicas({"r0": link(proxied), "r1": link(direct)})
            await reading
        with anyio.fail_after(DEADLINE_S):
            await host.left()
        assert host.num_live == 0


async def test_a_connection_with_a_wrong_token_is_refused() -> None:
    async with hosting() as host, opened(host) as door:
        with pytest.raises(ReplicaLost):
            async with aclosing(link(door._replace(token="guess")).attend("me")) as news:
                await anext(news)
        assert not await host.send_orders("me", encode_orders([]))


async def test_a_peer_that_sends_much_before_the_token_is_cut_off() -> None:
    async with hosting() as host, opened(host) as door:
        reader, writer = await asyncio.open_connection(door.address, door.port)
        writer.write(LENGTH.pack(1 << 31) + b"x" * 100)
        with anyio.fail_after(DEADLINE_S):
            assert not await _read_some(reader)
        writer.close()


async def test_half_a_frame_at_the_end_is_ignored() -> None:
    """Orders before the incomplete frame are obeyed."""
    async with hosting("step_s=0.01") as host, opened(host) as door:
        _, writer = await asyncio.open_connection(door.address, door.port)
        hello = msgspec.msgpack.encode(SessionHello(door.token, "me"))
        first = encode_orders([Submit(request=request("a", output=2000))])
        second = encode_orders([Submit(request=request("b", output=2000))])
        for payload in (hello, first):
            writer.write(LENGTH.pack(len(payload)) + payload)
        writer.write(LENGTH.pack(len(second)) + second[: len(second) // 2])
        await eventually(lambda: host.num_live == 1)
        writer.transport.abort()
        with anyio.fail_after(DEADLINE_S):
            await host.left()
        assert host.num_live == 0


async def test_a_peer_that_reads_nothing_is_given_up() -> None:
    """The peer renews its lease but reads no answers, so its requests are ended."""
    async with hosting("step_s=0.1") as host, opened(host, sending_s=0.2) as door:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((door.address, door.port))
        _, writer = await asyncio.open_connection(sock=sock, limit=1024)
        hello = msgspec.msgpack.encode(SessionHello(door.token, "slow"))
        orders = encode_orders([Submit(request=request("a", output=2000))])
        for payload in (hello, orders):
            writer.write(LENGTH.pack(len(payload)) + payload)
        await eventually(lambda: host.num_live)

        async def renew() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write((LENGTH.pack(1) + encode_orders([])) * 20_000)
                    await writer.drain()

        renewing = asyncio.create_task(renew())
        await eventually(lambda: not host.num_live)
        renewing.cancel()
        writer.transport.abort()


async def test_frames_come_in_order_to_a_slow_reader() -> None:
    """The sender waits, the receiver stores few frames, and no frame is lost."""
    ends: list[FrameStream] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FrameStream(opened=ends.append), "127.0.0.1", 0)
    _, there = await loop.create_connection(FrameStream, *server.sockets[0].getsockname())

    async def send() -> None:
        for number in range(2000):
            there.send(number.to_bytes(4, "big"), bytes(50_000))
            await there.sent()

    sending = asyncio.create_task(send())
    for _ in range(2000):  # rounds of the event loop, each of which could deliver a frame
        await anyio.lowlevel.checkpoint()
    assert not sending.done()
    with anyio.fail_after(DEADLINE_S):
        numbers = [int.from_bytes((await ends[0].receive())[:4], "big") for _ in range(2000)]
    assert numbers == list(range(2000))
    await sending
    there.close()
    with anyio.fail_after(DEADLINE_S):
        assert await ends[0].receive() is None
    server.close()


async def test_a_session_that_the_replica_ends_is_not_a_death() -> None:
    async with hosting() as host, opened(host) as door, aclosing(link(door).attend("me")) as news:
        assert read_news(await anext(news)).report is not None
        await host.close()
        with anyio.fail_after(DEADLINE_S):
            assert [payload async for payload in news] == []


async def test_orders_are_accepted_during_their_session_and_rejected_after_it() -> None:
    async with hosting() as host, opened(host) as door:
        stream = FrameStream()
        await asyncio.get_running_loop().create_connection(lambda: stream, door.address, door.port)
        stream.send(msgspec.msgpack.encode(SessionHello(door.token, "me")))
        assert (await stream.receive() or b"")[:1] == NewsFrame.NEWS
        await _send_orders(stream, answer=NewsFrame.TAKEN)
        async with aclosing(host.attend("me")) as successor:
            await anext(successor)
        await _send_orders(stream, answer=NewsFrame.UNKNOWN)
        stream.abort()


async def _send_orders(stream: FrameStream, *, answer: NewsFrame) -> None:
    stream.send(encode_orders([]))
    frames: list[bytes] = []
    with anyio.fail_after(DEADLINE_S):
        while not frames or frames[-1] not in (NewsFrame.TAKEN, NewsFrame.UNKNOWN):
            frames.append(await stream.receive())
    assert frames[-1] == answer
