"""A WebSocket of the real server, by a client library. What it does: tests/api/test_websocket.py."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough, pytest.mark.anyio]

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "temperature": 0}
PATH = "/v1/chat/completions"


async def test_several_at_once_answer_as_a_post_does(server: ServerProcess) -> None:
    async with httpx.AsyncClient() as http:
        alone = (await http.post(server.url + PATH, json=ASK)).json()["choices"][0]["message"]["content"]
    texts, num_done = defaultdict[str, str](str), 0
    async with connect(server.url.replace("http", "ws") + PATH) as socket:
        for number in range(10):
            await socket.send(json.dumps({**ASK, "request_id": str(number)}))
        while num_done < 10:
            message = json.loads(await socket.recv())
            assert "error" not in message, message
            choices = message.get("choices", ())
            texts[message["request_id"]] += "".join(c["delta"].get("content", "") for c in choices)
            num_done += "done" in message
    assert texts == {str(number): alone for number in range(10)}
