"""Reads `GET /v1/events` as its clients do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.types import ASGIApp, Message

from tests.api.asgi import scope_of
from tests.waiting import DEADLINE_S

Event = dict[str, Any]


class EventReader:
    """Reader of one stream. It reads only on request and stores the events that the test has not taken."""

    def __init__(self) -> None:
        self.status: int | None = None
        self._messages: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self._pending: list[Event] = []
        self._gone = asyncio.Event()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self._messages.put(message)

    def leave(self) -> None:
        self._gone.set()

    async def body(self) -> bytes | None:
        """Next piece, or None at the end."""
        with anyio.fail_after(DEADLINE_S):
            message = await self._messages.get()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return await self.body()
        body: bytes = message.get("body", b"")
        return body if message.get("more_body") or body else None

    async def next(self) -> Event:
        return await self.until(None)

    async def until(self, kind: str | None, fits: Callable[[Event], bool] = lambda event: True) -> Event:
        """Take the first event of this kind that fits. Earlier events stay pending."""
        for position, event in enumerate(self._pending):
            if kind in (None, event["type"]) and fits(event):
                return self._pending.pop(position)
        while not (kind in (None, (event := await self._read()).get("type")) and fits(event)):
            self._pending.append(event)
        return event

    async def _read(self) -> Event:
        while not (piece := await self.body() or b"").startswith(b"event: "):
            assert piece, "the stream has ended"
        name, _, data = piece.decode().partition("\n")
        event: Event = json.loads(data.removeprefix("data: "))
        assert event.get("type", "error") == name.removeprefix("event: ")
        return event


@asynccontextmanager
async def watching(
    app: ASGIApp, *, headers: Mapping[str, str] | None = None, types: str | None = None
) -> AsyncIterator[EventReader]:
    watcher = EventReader()
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


async def _drain(watcher: EventReader) -> None:
    while True:
        await watcher.body()
