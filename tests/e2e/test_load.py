"""Hundreds of streams at once on the real server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.serving import num_live, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

SLOTS = 16


@pytest.fixture(scope="module")
def busy() -> Iterator[ServerProcess]:
    slots = ("--ctx-size", "65536", "--max-seqs", str(SLOTS))
    with tiny_server(*slots, "--max-queue", "2000", "--read-timeout-s", "60") as server:
        yield server


def held_bytes(server: ServerProcess) -> int:
    """Return the memory without readers, because another one may start while prompts wait to be read."""
    return sum(process.memory_info().rss for process in (psutil.Process(server.process.pid), server.engine))


async def stream(port: int, max_tokens: int = 3) -> bytes:
    messages = [{"role": "user", "content": "a"}]
    fields = {"messages": messages, "stream": True, "max_tokens": max_tokens, "ignore_eos": True}
    data = json.dumps(fields).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: "
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}{len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


async def all_streams(server: ServerProcess, port: int, number: int) -> tuple[list[bytes], int]:
    """Return the answers and the memory while all streams are live. Long ones hold the slots until then."""
    long = [asyncio.create_task(stream(port, 3900)) for _ in range(SLOTS)]
    await asyncio.to_thread(wait_until, lambda: num_live(server) >= SLOTS)
    short = [asyncio.create_task(stream(port)) for _ in range(number)]
    await asyncio.to_thread(wait_until, lambda: num_live(server) >= number)
    memory = held_bytes(server)
    for task in long:
        task.cancel()
    await asyncio.wait(long)
    return await asyncio.gather(*short), memory


@pytest.mark.parametrize("number", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_streams_at_once_all_finish(busy: ServerProcess, number: int) -> None:
    """Most streams wait. A waiting stream costs some tens of kilobytes, beside the memory of threads."""
    port = int(busy.url.rsplit(":", 1)[1])
    asyncio.run(stream(port))
    before = held_bytes(busy)
    answers, memory = asyncio.run(all_streams(busy, port, number))
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
        assert answer.count(b'"finish_reason":"length"') == 1
        assert b"data: [DONE]" in answer
    ids = {re.search(rb'"id":"(chatcmpl-\w+)"', answer)[1] for answer in answers}  # type: ignore[index]
    assert len(ids) == number
    assert max(memory, held_bytes(busy)) - before < 32 * 2**20 + number * 256 * 1024
    assert any(b": queued position=" in answer for answer in answers)
    assert busy.status()["restarts"] == 0
