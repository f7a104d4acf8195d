"""Commits the results of rows. Rows that end during a commit share the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from openai_cpu_server.jobs.records import RowResult

Commit = Callable[[Sequence[RowResult]], Awaitable[None]]


class Recorder:
    """After an exception of `commit` it must not be used again, because other rows' results are lost too."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._waiting: list[RowResult] = []
        self._lock = anyio.Lock()

    async def record(self, result: RowResult) -> None:
        """Returns when the result is committed."""
        self._waiting.append(result)
        async with self._lock:
            if self._waiting and self._holds(result):
                taken, self._waiting = self._waiting, []
                await self._commit(taken)

    def _holds(self, result: RowResult) -> bool:
        """Whether the result still waits. The lock's last holder took all that waited then."""
        return any(waiting is result for waiting in self._waiting)
