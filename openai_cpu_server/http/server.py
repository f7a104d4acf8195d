"""Web server with graceful shutdown, and a number of connections that the limit of open files allows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import FrameType
from typing import Protocol

import uvicorn

logger = logging.getLogger(__name__)

_RESERVE = 128
"""Files for libraries, sockets, databases and uploads (a few dozen), and for rejected connections."""


def room_for_connections(wanted: int) -> int:
    """Return the possible number of connections, and raise the soft limit of open files. Beyond that limit
    a connection cannot even be rejected."""
    files = _raised(wanted + _RESERVE)
    possible = max(1, files - _RESERVE)
    if possible >= wanted:
        return wanted
    logger.warning(
        "%d connections at once, not the %d of --max-connections: the system lets this process open %d files "
        "(see ulimit -Hn)",
        possible,
        wanted,
        files,
    )
    return possible


def _raised(needed: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # macOS has a limit below the hard one
        return soft
    return raised


class Engines(Protocol):
    def requests(self) -> Sequence[object]: ...

    async def drain(self, seconds: float) -> None: ...

    async def close(self) -> None: ...

    def kill(self) -> None: ...


class WebServer(uvicorn.Server):
    """uvicorn with other meanings of signals. The first drains: no new requests are accepted, running ones
    get `drain_s`, and `checkpoint` is called. The second ends them at once, the third skips the delivery
    of last bytes. Signals are not raised again, so the process exits with 0."""

    def __init__(
        self,
        config: uvicorn.Config,
        engines: Engines,
        *,
        drain_s: float,
        checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._engines = engines
        self._drain_s = drain_s
        self._checkpoint = checkpoint
        self._num_signals = 0
        self._draining: asyncio.Task[None] | None = None

    def stop_if_failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Only record the signal, because this is a signal handler; `on_tick` and `shutdown` act."""
        self._num_signals += 1
        if self._num_signals > 1:
            self.should_exit = True
            asyncio.get_running_loop().call_soon_threadsafe(self._engines.kill)
        self.force_exit = self._num_signals > 2

    async def on_tick(self, counter: int) -> bool:
        if self._num_signals and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
            self._draining.add_done_callback(self._drained)
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        logger.info(
            "draining: what runs has %g s to end; another signal ends it at once (%d requests)",
            self._drain_s,
            len(self._engines.requests()),
        )
        await asyncio.gather(self._engines.drain(self._drain_s), self._checkpoint())

    def _drained(self, task: asyncio.Task[None]) -> None:
        self.should_exit = True
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("draining failed", exc_info=error)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._draining is not None:
            self._draining.cancel()
        await self._engines.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()
