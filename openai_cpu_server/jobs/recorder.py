"""Commits the results of rows; those that end while a commit is under way share the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from openai_cpu_server.jobs.records import RowResult

Commit = Callable[[Sequence[RowResult]], Awaitable[None]]


class Recorder:
    """After an exception of `commit` it must not be used any more: others' rows went with it."""

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
        """Whoever had the lock before took all that were waiting then."""
        return any(waiting is result for waiting in self._waiting)
