"""The book of what keys use: sums in memory, which are added to the database every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone

import anyio

from openai_cpu_server.contract.usage import Amounts
from openai_cpu_server.jobs.store.database import away
from openai_cpu_server.jobs.store.usage import Slot, UsagePage, UsageQuery, UsageStore
from openai_cpu_server.storage.breaker import CircuitBreaker
from openai_cpu_server.storage.database import Database, DatabaseThreads

logger = logging.getLogger(__name__)

WRITE_S = 5.0
"""What was used in so many seconds is lost with a process that is killed."""


class UsageBook:
    """All methods belong to one event loop's thread; the database is written to in another.

    Sums that cannot be written stay in memory. There is one for each key, model and day, so they stay few.
    """

    def __init__(
        self,
        database: Database,
        threads: DatabaseThreads,
        *,
        clock: Callable[[], float] = time.time,
        write_s: float = WRITE_S,
    ) -> None:
        self._store = UsageStore(database)
        self._threads = threads
        self._clock = clock
        self._write_s = write_s
        self._unwritten: dict[Slot, Amounts] = {}
        self._lock = anyio.Lock()
        self._breaker = CircuitBreaker(
            fails="what keys use cannot be written: %s",
            back="what keys use is written again",
            failure=away,
        )

    def add(self, key: str, model: str, amounts: Amounts) -> None:
        """The key of this name has used so much of this model, today."""
        slot = Slot(_day(self._clock()), key, model)
        self._unwritten[slot] = self._unwritten.get(slot, Amounts()) + amounts

    async def run(self) -> None:
        """Writes until it is cancelled. A database that is away is tried again."""
        while True:
            await anyio.sleep(self._write_s)
            await self.save()

    async def save(self) -> None:
        """Writes what is not written, as far as the database takes it."""
        try:
            await self._breaker.attempt(self._write)
        except Exception:
            logger.exception("what keys use cannot be written")

    async def page(self, query: UsageQuery) -> UsagePage:
        """What is used up to now on this server, and on others but for their last seconds.

        Raises JobsUnavailable.
        """
        await self._write()
        return await self._threads.read(self._store.page, query)

    async def _write(self) -> None:
        """Raises JobsUnavailable; then nothing is written, and nothing lost."""
        async with self._lock:
            taken, self._unwritten = self._unwritten, {}
            if not taken:
                return
            try:
                with anyio.CancelScope(shield=True):  # else nobody knows whether it is written
                    await self._threads.write(self._store.add, taken)
            except Exception:
                for slot, amounts in taken.items():
                    self._unwritten[slot] = self._unwritten.get(slot, Amounts()) + amounts
                raise


def _day(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, tz=timezone.utc).date().isoformat()
