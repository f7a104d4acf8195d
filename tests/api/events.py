"""Reads `GET /v1/events` as its clients do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.types import ASGIApp, Message

from tests.api.asgi import scope_of
from tests.waiting import DEADLINE_S

Told = dict[str, Any]


class Watcher:
    """One stream. It reads only when it is asked to: `next` takes what was sent, and lets more be sent."""

    def __init__(self) -> None:
        self.status: int | None = None
        self._messages: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self._gone = asyncio.Event()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self._messages.put(message)

    def leave(self) -> None:
        self._gone.set()

    async def body(self) -> bytes | None:
        """The next piece; None at the end."""
        message = await self._messages.get()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return await self.body()
        body: bytes = message.get("body", b"")
        return body if message.get("more_body") or body else None

    async def next(self) -> Told:
        """The next event that is no comment."""
        with anyio.fail_after(DEADLINE_S):
            while True:
                piece = await self.body()
                assert piece is not None, "the stream has ended"
                if piece.startswith(b"event: "):
                    name, _, data = piece.decode().partition("\n")
                    told: Told = json.loads(data.removeprefix("data: "))
                    assert told.get("type", "error") == name.removeprefix("event: ")
                    return told

    async def until(self, kind: str) -> Told:
        while (told := await self.next())["type"] != kind:
            pass
        return told


@asynccontextmanager
async def watching(
    app: ASGIApp, *, headers: Mapping[str, str] | None = None, types: str | None = None
) -> AsyncIterator[Watcher]:
    watcher = Watcher()
    query = b"" if types is None else f"types={types}".encode()
    scope = scope_of("/v1/events", headers, method="GET", query_string=query, client=("192.0.2.7", 1))
    task = asyncio.create_task(app(scope, watcher.receive, watcher.send))  # type: ignore[arg-type]
    try:
        yield watcher
    finally:
        watcher.leave()
        drain = asyncio.create_task(_drain(watcher))
        await task
        drain.cancel()


async def _drain(watcher: Watcher) -> None:
    while True:
        await watcher.body()
