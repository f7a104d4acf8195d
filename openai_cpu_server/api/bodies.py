"""What the bodies of all requests may hold in memory together while they are read and understood."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Scope

from openai_cpu_server.errors import BodiesFull

FREE_BYTES = 64 * 1024
"""Of each body. So senders of large bodies who dawdle keep nobody from an ordinary request."""
_KEY = "held_body"


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
    """One body's part of the budget. `most_bytes`: what of it is in memory at most; the rest is on disk."""

    def __init__(self, budget: BodyBudget, most_bytes: int) -> None:
        self._budget = budget
        self._most_bytes = most_bytes
        self._charged_bytes = 0

    def has_grown(self, received_bytes: int) -> None:
        """To so many bytes. Raises BodiesFull."""
        due = max(0, min(received_bytes, self._most_bytes) - FREE_BYTES)
        if due > self._charged_bytes:
            self._budget.take(due - self._charged_bytes)
            self._charged_bytes = due

    def release(self) -> None:
        self._budget.give(self._charged_bytes)
        self._charged_bytes = 0


def set_held_body(scope: Scope, held: HeldBody) -> None:
    scope[_KEY] = held


def release_body(scope: Scope) -> None:
    """For a request that goes on for long after the last reference to its body is gone."""
    held: HeldBody = scope[_KEY]
    held.release()


async def unkept_body(request: Request) -> bytes:
    """The body, which the request itself does not keep as it does with `Request.body`."""
    return b"".join([piece async for piece in request.stream()])
