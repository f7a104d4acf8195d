"""The threads that talk to a database: one that writes, and some that read without waiting for it.
An event loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from openai_cpu_server.storage.database import Database

P = ParamSpec("P")
T = TypeVar("T")

_READERS = 3
"""A long conversation that is read keeps one of them busy, and nobody else waits."""


class DatabaseThreads:
    """`name`: that of the threads. They raise RuntimeError once they are closed."""

    def __init__(self, database: Database, name: str) -> None:
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._readers = (
            ThreadPoolExecutor(_READERS, thread_name_prefix=f"{name}-read")
            if database.reads_beside_writes
            else self._writer
        )

    async def write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that writes, in the order of the calls.
        Work that has begun ends even if its caller is cancelled."""
        return await _done(self._writer, partial(work, *args, **kwargs))

    async def read(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that only reads. It sees what is committed."""
        return await _done(self._readers, partial(work, *args, **kwargs))

    async def close(self) -> None:
        """Wait until all work that has begun is done."""
        for executor in (self._writer, self._readers):
            await asyncio.to_thread(executor.shutdown)


async def _done(executor: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)
