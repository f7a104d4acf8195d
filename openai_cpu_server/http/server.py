"""The web server, and its end: what was accepted is finished first. As many connections as there are files
for."""

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
"""Files for the process itself (a few dozen:
libraries, sockets, databases, uploads on their way to disk), and for connections that are refused."""


def room_for_connections(wanted: int) -> int:
    """How many connections there may be, at most `wanted`. The soft limit is raised as far as they need it.

    Beyond the limit of open files no connection is accepted, not even to be refused.
    """
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
    """The limit of open files, which is raised towards `needed` if it is lower."""
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
    """What computes, for as long as the server runs."""

    def requests(self) -> Sequence[object]: ...

    async def drain(self, seconds: float) -> None: ...

    async def close(self) -> None: ...

    def kill(self) -> None: ...


class WebServer(uvicorn.Server):
    """uvicorn, with signals of our own meaning.

    The first SIGTERM or Ctrl-C drains: nothing new is accepted, while what runs has `drain_s` to end. The
    second ends everything at once, the third waits for nobody's last bytes either. `checkpoint` is called
    when draining begins. A signal that was obeyed is not raised again: the process ends with 0.
    """

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
        """Takes notes only, for it runs in a signal handler; `on_tick` and `shutdown` read them."""
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
        """Whatever still runs ends with an error."""
        if self._draining is not None:
            self._draining.cancel()
        await self._engines.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()
