"""Commands are sent in order. Very many tokens are sent in slices, between which the loop does other work."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.media import Picture, PictureSize, Sound
from openai_cpu_server.contract.messages import LENGTH, CancelRequest, Submit, read_command
from openai_cpu_server.engine.loop import EngineChannel
from openai_cpu_server.engine_client.calls import GenerationAnswer
from openai_cpu_server.engine_client.child import ClientChannel
from openai_cpu_server.engine_client.live import AcceptedRequest
from tests.scheduler.driver import request

pytestmark = pytest.mark.anyio

TOKENS = tuple(range(400_000))


def submit(number: int, tokens: tuple[int, ...] = TOKENS) -> Submit:
    return Submit(request=request(str(number), tokens=tokens))


async def received_names(reader: asyncio.StreamReader, number: int) -> list[str]:
    names = []
    for _ in range(number):
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        command = read_command(await reader.readexactly(length))
        names.append(command.request.id if isinstance(command, Submit) else f"-{command.id}")
    return names


@asynccontextmanager
async def linked_channel() -> AsyncIterator[tuple[ClientChannel, asyncio.StreamWriter, asyncio.StreamReader]]:
    ours, theirs = socket.socketpair()
    engine, engine_writer = await asyncio.open_connection(sock=theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    yield ClientChannel(reader, writer), writer, engine
    for one in (writer, engine_writer):
        one.close()
        with contextlib.suppress(ConnectionError):
            await one.wait_closed()


async def test_a_command_that_cannot_be_framed_keeps_back_no_other() -> None:
    async with linked_channel() as (channel, _, engine):
        with pytest.raises(UnicodeEncodeError):
            channel.send(CancelRequest(id="a"), CancelRequest(id="\ud800"), CancelRequest(id="b"))
        channel.send(CancelRequest(id="c"))
        assert await received_names(engine, 3) == ["-a", "-b", "-c"]


async def test_many_tokens_go_in_slices_and_in_order() -> None:
    async with linked_channel() as (channel, writer, engine):
        channel.send(*(submit(number) for number in range(10)))
        first = writer.transport.get_write_buffer_size()
        channel.send(CancelRequest(id="3"))
        assert writer.transport.get_write_buffer_size() == first  # the command waits behind the slices
        assert first < 5 * 3 * len(TOKENS)
        assert await received_names(engine, 11) == [*map(str, range(10)), "-3"]
        channel.send(submit(10, (1, 2)), CancelRequest(id="10"))
        assert await received_names(engine, 2) == ["10", "-10"]


async def test_media_arrive_whole_and_media_of_a_request_that_cannot_be_framed_reach_no_other() -> None:
    picture = Picture.of(PictureSize(1000, 800), bytes(2_400_000))
    small = Picture.of(PictureSize(5, 5), bytes(75))
    items = (picture, Sound.of(bytes(range(256)) * 20_000), picture)
    short, large = (request("1", tokens=(1, 2), media_items=each) for each in ((small,), items))
    embedding = Submit(request=EmbedRequest(id="2", inputs=((1,),)))
    commands = [
        embedding,
        submit(3, (3,)),
        Submit(request=short),
        Submit(request=large),
        submit(4, (3,)),
    ]
    ours, theirs = socket.socketpair()
    with theirs:
        channel = ClientChannel(*await asyncio.open_connection(sock=ours))
        with pytest.raises(UnicodeEncodeError):
            channel.send(Submit(request=msgspec.structs.replace(short, id="\ud800")))
        channel.send(*commands)
        engine = EngineChannel(theirs)
        assert [await anyio.to_thread.run_sync(engine.receive) for _ in commands] == commands
        channel.close()


async def test_a_request_after_a_crash_is_sent_with_all_its_output() -> None:
    one = msgspec.structs.replace(submit(0, (7, 8, 9)).request, boundaries=(1, 3), stop=("x",))
    answer = GenerationAnswer([one], cancel=lambda _: None, clock=lambda: 0.0)
    live = AcceptedRequest(one, answer, 0.0, output=[5, 6])
    async with linked_channel() as (channel, _, engine):
        channel.send(*live.commands())
        (length,) = LENGTH.unpack(await engine.readexactly(LENGTH.size))
        assert read_command(await engine.readexactly(length)) == Submit(request=one, output=(5, 6))


async def test_inputs_to_embed_are_sent_in_slices_too() -> None:
    async with linked_channel() as (channel, writer, engine):
        inputs = (TOKENS,) * 2
        channel.send(*(Submit(request=EmbedRequest(id=str(number), inputs=inputs)) for number in range(8)))
        assert writer.transport.get_write_buffer_size() < 6 * 2 * 3 * len(TOKENS)
        assert await received_names(engine, 8) == [str(number) for number in range(8)]


async def test_commands_that_wait_when_the_engine_ends_are_lost() -> None:
    async with linked_channel() as (channel, writer, _):
        channel.send(*(submit(number) for number in range(10)))
        channel.close()
        await anyio.lowlevel.checkpoint()
        channel.send(CancelRequest(id="1"))
        writer.transport.abort()
        assert await channel.receive() is None
