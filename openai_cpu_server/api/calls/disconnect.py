"""A client that does not stream is watched as well: when it leaves, its work ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def while_connected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Returns the work's result or raises its exception.

    If the client leaves, it cancels the work and raises ClientDisconnect. The body must have been read.
    """
    results: list[T] = []
    failures: list[Exception] = []  # carried out by hand: a task group would wrap them

    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
        try:
            results.append(await work())
        except Exception as error:
            failures.append(error)
        group.cancel_scope.cancel()
    for failure in failures:
        raise failure
    for result in results:
        return result
    raise ClientDisconnect


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
