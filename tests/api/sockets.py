"""A WebSocket client at the ASGI interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.types import ASGIApp, Message

from tests.api.asgi import scope_of
from tests.api.talking import MESSAGES
from tests.waiting import DEADLINE_S

CHAT_BODY = {"messages": MESSAGES, "max_tokens": 8, "seed": 1, "temperature": 0}
Json = dict[str, Any]


class Socket:
    def __init__(self) -> None:
        self.to_app: asyncio.Queue[Message] = asyncio.Queue()
        self.from_app: asyncio.Queue[Message] = asyncio.Queue()
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._pending: list[Json] = []

    def send(self, message: object) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self.to_app.put_nowait({"type": "websocket.receive", "text": text})

    def ask(self, request_id: str | None = None, /, **fields: object) -> None:
        id_field = {"request_id": request_id} if request_id is not None else {}
        self.send({**CHAT_BODY, **id_field, **fields})

    def close(self) -> None:
        self.to_app.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def next(self) -> Json:
        return await self.take(lambda message: True)

    async def take(self, fits: Callable[[Json], bool]) -> Json:
        """Take the first message that fits. Earlier messages stay pending."""
        for position, message in enumerate(self._pending):
            if fits(message):
                return self._pending.pop(position)
        while not fits(message := await self._received()):
            self._pending.append(message)
        return message

    async def _received(self) -> Json:
        with anyio.fail_after(DEADLINE_S):
            message = await self.from_app.get()
        assert message["type"] == "websocket.send", message
        return dict(json.loads(message["text"]))

    async def until_end(self, *names: str) -> dict[str, list[Json]]:
        """Messages of these requests, up to the last one of each."""
        return {name: await self.answer(name) for name in names}

    async def answer(self, name: str) -> list[Json]:
        """Messages of this request, up to its last one."""
        found: list[Json] = []
        while not found or not is_last(found[-1]):
            found.append(await self.take(lambda message: message["request_id"] == name))
        return found

    async def accepted(self) -> Message:
        with anyio.fail_after(DEADLINE_S):
            message = await self.from_app.get()
        assert message["type"] == "websocket.accept", message
        return message

    async def refused(self) -> tuple[int, Json]:
        start, body = await self.from_app.get(), await self.from_app.get()
        assert start["type"] == "websocket.http.response.start"
        return start["status"], json.loads(body["body"])["error"]

    async def receive(self) -> Message:
        return await self.to_app.get()

    async def from_server(self, message: Message) -> None:
        await self.may_send.wait()
        self.from_app.put_nowait(message)


def is_last(message: Json) -> bool:
    return "done" in message or "error" in message


@asynccontextmanager
async def connected(
    app: ASGIApp,
    headers: Mapping[str, str] | None = None,
    subprotocols: tuple[str, ...] = (),
    path: str = "/v1/chat/completions",
    is_bare: bool = False,
) -> AsyncIterator[Socket]:
    """Connect, and at exit close the socket and wait until the application has returned. `is_bare`: without
    the default Host header."""
    socket = Socket()
    scope = scope_of(path, {**({} if is_bare else {"host": "test"}), **(headers or {})}, type="websocket")
    scope |= {
        "scheme": "ws",
        "client": None,
        "subprotocols": list(subprotocols),
        "extensions": {"websocket.http.response": {}},
    }
    socket.to_app.put_nowait({"type": "websocket.connect"})
    task = asyncio.create_task(app(scope, socket.receive, socket.from_server))
    try:
        yield socket
    finally:
        socket.close()
        with anyio.fail_after(DEADLINE_S):
            await task


@asynccontextmanager
async def opened(app: ASGIApp, **options: Any) -> AsyncIterator[Socket]:
    async with connected(app, **options) as socket:
        await socket.accepted()
        yield socket


def content(messages: list[Json]) -> str:
    deltas = [choice["delta"] for message in messages for choice in message.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)
