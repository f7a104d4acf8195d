"""A request's body must come at a pace: nobody holds a connection by sending a byte now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.errors import BodyTooSlow

_BYTES_PER_S = 1024
"""Each of these buys a body a second more."""


class BodyPace:
    """Refuses a body that takes longer than `read_timeout_s` and a second for every KiB of it."""

    def __init__(self, app: ASGIApp, *, read_timeout_s: float) -> None:
        self._app = app
        self._read_timeout_s = read_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = paced(receive, self._read_timeout_s)
        await self._app(scope, receive, send)


def paced(receive: Receive, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> Receive:
    """`receive` that raises BodyTooSlow before the body's end, and waits as it likes behind it."""
    ends_s = clock() + timeout_s
    is_whole = False

    async def in_time() -> Message:
        nonlocal ends_s, is_whole
        if is_whole:
            return await receive()
        try:
            with anyio.fail_after(max(0.0, ends_s - clock())):
                message = await receive()
        except TimeoutError:
            raise BodyTooSlow from None
        ends_s += len(message.get("body", b"")) / _BYTES_PER_S
        is_whole = not message.get("more_body", False)
        return message

    return in_time
