"""The inner gate: what a request may use of its key's limits, and how large and how slow its body may be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import anyio
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.api.access.identity import identity_of
from openai_cpu_server.api.access.keys import METERED_PATHS
from openai_cpu_server.api.access.rate_limits import Lease, RateLimits
from openai_cpu_server.api.calls.call import PRIORITY_HEADER, Sender
from openai_cpu_server.api.gates.ticket import ticket_of
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.errors import BodiesFull, BodyTooLarge, BodyTooSlow

FREE_BYTES = 64 * 1024
"""So much of each body is free. Senders of large bodies who dawdle keep nobody from an ordinary request."""
MOST_SMALL_BYTES = 64 * 1024
"""A body has no more where all that is wanted are a few names and numbers."""
_BYTES_PER_S = 1024
"""Each of so many bytes buys its body a second more."""
_SPOOLED_BYTES = 1024 * 1024
"""Starlette's reader of forms keeps so much of a file in memory."""
_HEARD_OUT_BYTES, _HEARD_OUT_S = 8 * 1024 * 1024, 2.0
"""A body that is too large by no more than that is read to its end, for no longer than that."""
_LEASE = "openai_cpu_server.lease"
_HELD_BODY = "openai_cpu_server.held_body"


class FairUse:
    """Holds a call to its key's limits for as long as it is served, and each body to its size and pace."""

    def __init__(
        self, app: ASGIApp, *, limits: RateLimits, options: ApiOptions, uploads: Mapping[str, int]
    ) -> None:
        """`uploads`: paths with limits of their own, whose bodies go to disk beyond `_SPOOLED_BYTES`."""
        self._app = app
        self._limits = limits
        self._options = options
        self._budget = BodyBudget(options.max_bodies_bytes)
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] in METERED_PATHS:
            await self._metered(scope, receive, send)
        else:
            await self._with_body(scope, receive, send)

    async def _metered(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            ticket_of(scope).priority = self._sender(scope).announced_priority()
        scope[_LEASE] = lease = self._limits.lease(identity_of(scope).key)
        async with lease:
            await self._with_body(scope, receive, send)

    def _sender(self, scope: Scope) -> Sender:
        header = Headers(scope=scope).get(PRIORITY_HEADER)
        return Sender.of(identity_of(scope), header=header, default=self._options.default_priority)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a body by what it says of its length, by counting, and if all together are too large."""
        is_spooled = scope["path"] in self._uploads
        max_bytes = self._uploads.get(scope["path"], self._options.max_body_bytes)
        announced = _announced_bytes(scope)
        if announced > max_bytes:
            if announced - max_bytes <= _HEARD_OUT_BYTES:
                await _hear_out(receive)
            raise BodyTooLarge(max_bytes)
        scope[_HELD_BODY] = held = HeldBody(self._budget, _SPOOLED_BYTES if is_spooled else max_bytes)
        in_time, received = paced(receive, self._options.read_timeout_s), 0

        async def counted() -> Message:
            nonlocal received
            message = await in_time()
            received += len(message.get("body", b""))
            if received > max_bytes:
                raise BodyTooLarge(max_bytes)
            held.has_grown(received)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            held.release()


class BodyBudget:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Raises BodiesFull, and takes nothing then."""
        if self._held_bytes + num_bytes > self._max_bytes:
            raise BodiesFull
        self._held_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        assert num_bytes <= self._held_bytes, "given back twice"
        self._held_bytes -= num_bytes


class HeldBody:
    """One body's part of the budget. At most `most_bytes` of it are in memory; the rest is on disk."""

    def __init__(self, budget: BodyBudget, most_bytes: int) -> None:
        self._budget = budget
        self._most_bytes = most_bytes
        self._charged_bytes = 0

    def has_grown(self, received_bytes: int) -> None:
        """The body has so many bytes now. Raises BodiesFull."""
        due = max(0, min(received_bytes, self._most_bytes) - FREE_BYTES)
        if due > self._charged_bytes:
            self._budget.take(due - self._charged_bytes)
            self._charged_bytes = due

    def release(self) -> None:
        self._budget.give(self._charged_bytes)
        self._charged_bytes = 0


def lease_of(scope: Scope) -> Lease:
    """The lease of a request on a metered path."""
    lease = scope[_LEASE]
    assert isinstance(lease, Lease)
    return lease


def limit_headers_of(scope: Scope) -> dict[str, str]:
    """What the response of a request is to say of its key's limits; nothing on paths that are not metered."""
    lease = scope.get(_LEASE)
    return lease.headers if isinstance(lease, Lease) else {}


def release_body(scope: Scope) -> None:
    """Gives the budget back early, for a request that goes on for long after its body is understood."""
    held: HeldBody = scope[_HELD_BODY]
    held.release()


async def _hear_out(receive: Receive) -> None:
    """Reads a body and keeps nothing of it. A client that still sends when the connection closes sees a reset
    instead of the answer."""
    with anyio.move_on_after(_HEARD_OUT_S):
        while (await receive()).get("more_body", False):
            pass


async def small_body(request: Request) -> bytes:
    """The body of a request that never needs a large one, such as those that manage something.
    Raises BodyTooLarge."""
    received = bytearray()
    async for piece in request.stream():
        received += piece
        if len(received) > MOST_SMALL_BYTES:
            await _hear_out(request.receive)
            raise BodyTooLarge(MOST_SMALL_BYTES)
    return bytes(received)


async def unkept_body(request: Request) -> bytes:
    """Reads the body. Unlike `Request.body` it does not leave a copy in the request."""
    return b"".join([piece async for piece in request.stream()])


def paced(receive: Receive, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> Receive:
    """Returns a `receive` that raises BodyTooSlow before the body's end, and behind it waits as long as it
    takes."""
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


def _announced_bytes(scope: Scope) -> int:
    """The `content-length`; 0 where it is missing, or is no number that a server would let pass."""
    announced = Headers(scope=scope).get("content-length", "")
    return int(announced) if announced.isdecimal() and len(announced) < 20 else 0
