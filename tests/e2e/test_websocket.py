"""WebSockets over the wire: a client library of the world, a page's way of sending its key, slow readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.serving import tiny_server
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough, pytest.mark.anyio]

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "temperature": 0}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def locked() -> Iterator[ServerProcess]:
    options = ("--ctx-size", "16384", "--api-key", "s3cret", "--write-timeout-s", "1", "--max-body-mb", "1")
    with tiny_server(*options) as server:
        yield server


def opened(server: ServerProcess, **more: Any) -> connect:
    return connect(server.url.replace("http", "ws") + PATH, **more)


def with_key(server: ServerProcess, **more: Any) -> connect:
    return opened(server, additional_headers={"authorization": "Bearer s3cret"}, **more)


async def until_done(socket: ClientConnection, *names: str) -> dict[str, str]:
    """The content of each, when all are done."""
    texts, left = dict.fromkeys(names, ""), set(names)
    while left:
        message = json.loads(await socket.recv())
        assert "error" not in message, message
        name = message["request_id"]
        texts[name] += "".join(c["delta"].get("content", "") for c in message.get("choices", ()))
        if "done" in message:
            left.discard(name)
    return texts


async def test_several_at_once_answer_as_a_post_does(locked: ServerProcess) -> None:
    async with httpx.AsyncClient(headers={"authorization": "Bearer s3cret"}) as http:
        alone = (await http.post(locked.url + PATH, json=ASK)).json()["choices"][0]["message"]["content"]
    async with with_key(locked) as socket:
        names = [str(i) for i in range(10)]
        for name in names:
            await socket.send(json.dumps({**ASK, "request_id": name}))
        texts = await until_done(socket, *names)
    assert set(texts.values()) == {alone}
