"""The inner gate: what a request may use of its key's limits, and how large and how slow its body may be."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from io import BytesIO

import anyio
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.api.access.access import Access, Metering
from openai_cpu_server.api.access.identity import identity_of
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
    """Holds a request to its key's limits for as long as it is served, and each body to its size and pace."""

    def __init__(self, *, limits: RateLimits, options: ApiOptions, bodies: BodyBudget) -> None:
        self._limits = limits
        self._options = options
        self._bodies = bodies

    async def serve(
        self, access: Access, handle: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The messages of a WebSocket are held to the same where they are read."""
        if scope["type"] != "http":
            await handle(scope, receive, send)
            return
        if access.metering is Metering.CALLS and scope["method"] == "POST":
            ticket_of(scope).priority = self._sender(scope).announced_priority()
        max_bytes = self._options.max_upload_bytes if access.is_upload else self._options.max_body_bytes
        await _check_announced(scope, receive, max_bytes)
        if access.metering is not Metering.NONE:
            takes_place = access.metering is not Metering.REQUESTS
            scope[_LEASE] = self._limits.lease(identity_of(scope).key, takes_place=takes_place)
        async with scope.get(_LEASE) or contextlib.nullcontext():
            most_bytes = _SPOOLED_BYTES if access.is_upload else max_bytes
            scope[_HELD_BODY] = held = HeldBody(self._bodies, most_bytes)
            try:
                await handle(scope, self._counted(receive, held, max_bytes), send)
            finally:
                held.release()

    def _sender(self, scope: Scope) -> Sender:
        header = Headers(scope=scope).get(PRIORITY_HEADER)
        return Sender.of(identity_of(scope), header=header, default=self._options.default_priority)

    def _counted(self, receive: Receive, held: HeldBody, max_bytes: int) -> Receive:
        """Returns a `receive` that raises for a body that is too large, too slow or too much."""
        in_time, received = paced(receive, self._options.read_timeout_s), 0

        async def counted() -> Message:
            nonlocal received
            message = await in_time()
            if piece := message.get("body", b""):  # else what was given back early would be taken again
                received += len(piece)
                if received > max_bytes:
                    raise BodyTooLarge(max_bytes)
                held.has_grown(received)
            return message

        return counted


class BodyBudget:
    """The memory for all bodies, and for messages of WebSockets, that are being read."""

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
    """One body's part of the budget, or that of a WebSocket's unfinished messages. At most `most_bytes` of it
    are in memory; the rest is on disk."""

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

    def holds(self, num_bytes: int) -> bool:
        """So many bytes are held now, be it more or less. False: there is no room for more."""
        due = max(0, min(num_bytes, self._most_bytes) - FREE_BYTES)
        if due < self._charged_bytes:
            self._budget.give(self._charged_bytes - due)
            self._charged_bytes = due
        try:
            self.has_grown(num_bytes)
        except BodiesFull:
            return False
        return True

    def release(self) -> None:
        self._budget.give(self._charged_bytes)
        self._charged_bytes = 0


def lease_of(scope: Scope) -> Lease:
    """The lease of a request to a metered route."""
    lease = scope[_LEASE]
    assert isinstance(lease, Lease)
    return lease


def limit_headers_of(scope: Scope) -> dict[str, str]:
    """What the response of a request is to say of its key's limits; nothing where it is not metered."""
    lease = scope.get(_LEASE)
    return lease.headers if isinstance(lease, Lease) else {}


def release_body(scope: Scope) -> None:
    """Gives the budget back early, for a request that goes on for long after its body is understood."""
    held: HeldBody = scope[_HELD_BODY]
    held.release()


async def _check_announced(scope: Scope, receive: Receive, max_bytes: int) -> None:
    """Raises BodyTooLarge for a body that says so itself; then it counts against no limit of its key."""
    announced = _announced_bytes(scope)
    if announced <= max_bytes:
        return
    if announced - max_bytes <= _HEARD_OUT_BYTES:
        await _hear_out(receive)
    raise BodyTooLarge(max_bytes)


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
    """Reads the body. Unlike `Request.body` it leaves no copy in the request, and puts each piece where it
    belongs when it comes: to join 20 MB in one go can hold the event loop for a tenth of a second."""
    received = BytesIO()
    async for piece in request.stream():
        received.write(piece)
    return received.getvalue()  # without a copy, as CPython has it


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
