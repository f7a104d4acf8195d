"""A client at the ASGI interface: it gets every chunk when it is sent, and it can disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Scope


def scope_of(path: str, headers: Mapping[str, str] | None, *, method: str = "POST", **more: object) -> Scope:
    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": b"",
        "root_path": "",
        "headers": raw,
        "server": ("test", 80),
        "client": ("test", 1),
        **more,
    }


class Exchange:
    """One running POST. Its body may be sent in several pieces."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()

    def send_body(self, *pieces: bytes) -> None:
        for index, piece in enumerate(pieces):
            more = index < len(pieces) - 1
            self._to_app.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def begin_body(self, piece: bytes) -> None:
        """Send a piece that is not the last."""
        self._to_app.put_nowait({"type": "http.request", "body": piece, "more_body": True})

    @property
    def has_read_all(self) -> bool:
        """The application has read every message."""
        return self._to_app.empty()

    def disconnect(self) -> None:
        self._to_app.put_nowait({"type": "http.disconnect"})

    async def chunk(self) -> bytes | None:
        """Next piece of the response's body, or None after the last."""
        message = await self._from_app.get()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return await self.chunk()
        if not message.get("more_body", False) and not message.get("body"):
            return None
        body = message["body"]
        assert isinstance(body, bytes)
        return body

    async def rest(self) -> list[bytes]:
        """All further pieces of the body."""
        pieces = []
        while (piece := await self.chunk()) is not None:
            pieces.append(piece)
        return pieces

    async def receive(self) -> Message:
        return await self._to_app.get()

    async def send(self, message: Message) -> None:
        self._from_app.put_nowait(message)


@asynccontextmanager
async def exchange(
    app: ASGIApp,
    path: str,
    body: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Exchange]:
    """Send a POST, and at exit wait until the application has returned. The caller sends a body of None."""
    call = Exchange()
    if body is not None:
        call.send_body(json.dumps(body).encode())
    task = asyncio.create_task(app(scope_of(path, headers), call.receive, call.send))  # type: ignore[arg-type]
    try:
        yield call
    except BaseException:
        call.disconnect()  # a test that fails must not wait for a response
        raise
    finally:
        await task
