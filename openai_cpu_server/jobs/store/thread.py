"""The one thread that talks to the database:
a single writer, and an event loop that never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="jobs-db")

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the thread, in the order of the calls.
        Work that has begun ends even if its caller is cancelled."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(work, *args, **kwargs))

    async def close(self) -> None:
        """Wait until all work that has begun is done."""
        await asyncio.to_thread(self._executor.shutdown)
