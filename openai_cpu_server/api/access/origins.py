"""Whose pages may call. A browser sends some POSTs of any page without asking, and opens any WebSocket."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.errors import OriginRefused


def check_origin(headers: Headers, allowed: Collection[str]) -> None:
    """Raises OriginRefused for a page that is neither this server's nor of an allowed origin."""
    origin = headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    if urlsplit(origin).netloc != headers.get("host"):
        raise OriginRefused(origin)


class OriginCheck:
    """Of POSTs; all else that changes something needs a preflight."""

    def __init__(self, app: ASGIApp, *, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            check_origin(Headers(scope=scope), self._allowed)
        await self._app(scope, receive, send)
