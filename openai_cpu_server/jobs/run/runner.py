"""Finds free batches, runs them, and renews their leases."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from openai_cpu_server.errors import JobsUnavailable
from openai_cpu_server.jobs.records import BatchRecord, BatchStatus
from openai_cpu_server.jobs.run.batch import BatchParts, BatchPaused, BatchRun, StopReason
from openai_cpu_server.jobs.run.rows import RunRow
from openai_cpu_server.jobs.store.database import unavailable_reason as reason_away
from openai_cpu_server.storage.breaker import CircuitBreaker

logger = logging.getLogger(__name__)

_RENEWALS_A_LEASE = 4
_SWEEP_S = 600.0
_LONGEST_PAUSE_S = 600.0
"""Limits may be raised, and files deleted, earlier than expected."""
_AFTER_FAILURE_S = 5.0


class BatchRunner:
    def __init__(self, parts: BatchParts) -> None:
        self._parts = parts
        self._files, self._ledger = parts.files, parts.ledger
        self._options, self._clock = parts.options, parts.clock
        self._runs: dict[str, BatchRun] = {}
        self._paused_until: dict[str, float] = {}
        self._breaker = CircuitBreaker(
            fails="the jobs database is unavailable: %s",
            back="the jobs database is back",
            failure=reason_away,
        )
        self._news = anyio.Event()

    async def run(self, run_row: RunRow) -> None:
        """Run batches until cancelled. Then they can be resumed, by other processes after `release`."""
        slots = anyio.Semaphore(self._options.concurrency)
        async with anyio.create_task_group() as group:
            renewal_s = min(self._options.poll_s, self._options.lease_s / _RENEWALS_A_LEASE)
            group.start_soon(self._repeat, self._renew, renewal_s)
            group.start_soon(self._repeat, self._files.prune_expired, _SWEEP_S)
            while True:
                self._news = anyio.Event()
                await self._attempt(lambda: self._start_all(group, run_row, slots))
                with anyio.move_on_after(self._options.poll_s):
                    await self._news.wait()

    def wake(self) -> None:
        self._news.set()

    def resume(self) -> None:
        self._paused_until.clear()
        self.wake()

    def cancel(self, batch_id: str) -> None:
        """End a batch that runs here and is CANCELLING in the database already."""
        run = self._runs.get(batch_id)
        if run is not None:
            run.stop(StopReason.CANCELLED)
        self.wake()

    async def release(self) -> None:
        """Give up the leases. The others end with this process."""
        for batch_id in list(self._runs):
            await self._attempt(partial(self._ledger.release, batch_id))
            del self._runs[batch_id]

    async def _start_all(self, group: TaskGroup, run_row: RunRow, slots: anyio.Semaphore) -> None:
        found = await self._ledger.unfinished(self._options.model)
        for batch in found:
            if batch.id in self._runs or not self._has_room_for(batch):
                continue
            if await self._ledger.claim(batch):
                run = self._runs[batch.id] = BatchRun(batch, self._parts, run_row, slots)
                group.start_soon(self._run_to_end, batch, run)

    def _has_room_for(self, batch: BatchRecord) -> bool:
        if batch.status is BatchStatus.CANCELLING or batch.expires_at <= self._clock():
            return True
        is_paused = self._paused_until.get(batch.id, 0.0) > self._clock()
        return not is_paused and len(self._runs) < self._options.max_batches

    async def _run_to_end(self, batch: BatchRecord, run: BatchRun) -> None:
        logger.info("batch %s: %s", batch.id, "begins" if batch.in_progress_at is None else "goes on")
        try:
            ended = await run.run()
            logger.info("batch %s: %s", batch.id, ended.value if ended else "is run by another server")
        except BatchPaused as paused:
            logger.info("batch %s waits: its owner's limits are used up, or the disk is full", batch.id)
            now_s, until_s = self._clock(), self._clock() + min(paused.wait_s, _LONGEST_PAUSE_S)
            still = {name: end_s for name, end_s in self._paused_until.items() if end_s > now_s}
            self._paused_until = {**still, batch.id: until_s}
            await self._attempt(lambda: self._ledger.release(batch.id))
        except Exception as error:
            if (away := _database_failure(error)) is None:
                logger.error("batch %s stopped; it is tried again", batch.id, exc_info=error)
            else:
                logger.error("batch %s stopped, and is tried again: %s", batch.id, away.reason)
            await anyio.sleep(_AFTER_FAILURE_S)
            await self._attempt(lambda: self._ledger.release(batch.id))
        del self._runs[batch.id]  # not when cancelled: `release` needs to know
        self.wake()

    async def _renew(self) -> None:
        """Others may have cancelled batches that run here, or taken them while this process slept."""
        held = await self._ledger.renew()
        for batch_id in held.keys() - self._runs.keys():  # its release failed
            await self._ledger.release(batch_id)
        for batch_id, run in list(self._runs.items()):
            if batch_id not in held:
                run.stop(StopReason.LEASE_LOST)
            elif held[batch_id] is BatchStatus.CANCELLING:
                run.stop(StopReason.CANCELLED)

    async def _repeat(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            await self._attempt(work)
            await anyio.sleep(every_s)

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await self._breaker.attempt(work)
        except Exception:
            logger.exception("the jobs database failed")


def _database_failure(error: BaseException) -> JobsUnavailable | None:
    if isinstance(error, JobsUnavailable):
        return error
    parts = getattr(error, "exceptions", ())  # of a group, for which Python 3.10 has no name
    found = [_database_failure(part) for part in parts]
    return found[0] if found and all(found) else None
