"""Running of batches under leases."""

from __future__ import annotations

import enum
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

import anyio
from anyio.abc import TaskGroup

from openai_cpu_server.errors import JobsUnavailable, ServerError
from openai_cpu_server.jobs.records import BatchRecord, BatchStatus, JobOptions, LineError, RowResult
from openai_cpu_server.jobs.run.rows import (
    BatchRow,
    InputCheck,
    InputLine,
    LineSplitter,
    RunRow,
    expired,
    parse_row,
    row_result,
)
from openai_cpu_server.jobs.store.batches import BatchLedger, LeaseLost
from openai_cpu_server.jobs.store.database import unavailable_reason
from openai_cpu_server.jobs.store.files import FileStore
from openai_cpu_server.jobs.store.storage import StorageQuotas
from openai_cpu_server.storage.breaker import CircuitBreaker

Commit = Callable[[Sequence[RowResult]], Awaitable[None]]


class RowRecorder:
    """Unusable after an exception of `commit`, because other rows' results are lost too."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._waiting: list[RowResult] = []
        self._lock = anyio.Lock()

    async def record(self, result: RowResult) -> None:
        self._waiting.append(result)
        async with self._lock:
            if any(waiting is result for waiting in self._waiting):
                taken, self._waiting = self._waiting, []
                await self._commit(taken)


_EXPIRED_AT_ONCE = 500
_LONGEST_RETRY_S = 10.0
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 1.0, 5.0
"""A batch whose owner must wait longer makes room for others."""
_INLINE_BYTES = 64 * 1024
"""Read or written in a fraction of a millisecond, about the cost of a thread."""
P = ParamSpec("P")
T = TypeVar("T")


class StopReason(enum.Enum):
    CANCELLED = "cancelled"
    LEASE_LOST = "lease lost"


class BatchPaused(ServerError):
    """Raised when all rows are committed."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"no row can run for {wait_s:g} s")
        self.wait_s = wait_s


class BatchParts(NamedTuple):
    files: FileStore
    ledger: BatchLedger
    storage: StorageQuotas
    options: JobOptions
    clock: Callable[[], float]


class BatchRun:
    """`slots`: for rows of all batches. A cancelled `run` can be resumed."""

    def __init__(
        self, batch: BatchRecord, parts: BatchParts, run_row: RunRow, slots: anyio.Semaphore
    ) -> None:
        self._batch = batch
        self._parts = parts
        self._ledger = parts.ledger
        self._run_row = run_row
        self._slots = slots
        self._scope = anyio.CancelScope()
        self._stop: StopReason | None = None
        self._pause_s: float | None = None
        self._put_back: list[BatchRow] = []
        self._errors: list[LineError] = []
        self._recorder = RowRecorder(self._commit)

    def stop(self, why: StopReason) -> None:
        if self._stop is None:
            self._stop = why
            self._scope.cancel()

    async def run(self) -> BatchStatus | None:
        """Return None if another process has the batch. Raises BatchPaused."""
        try:
            ending = await self._until_stopped()
            if ending is BatchStatus.EXPIRED:
                ending = await self._overdue()
            if ending is None:
                return None
            return await self._ledger.finish(self._batch.id, ending, errors=self._errors)
        except LeaseLost:
            return None

    async def _until_stopped(self) -> BatchStatus | None:
        ending = BatchStatus.EXPIRED  # what is left if the time runs out
        self._scope.deadline = anyio.current_time() + self._batch.expires_at - self._parts.clock()
        with self._scope:
            ending = await self._work()
        if self._stop is StopReason.LEASE_LOST:
            return None
        return BatchStatus.CANCELLED if self._stop is StopReason.CANCELLED else ending

    async def _work(self) -> BatchStatus:
        status, batch_id = self._batch.status, self._batch.id
        if status is BatchStatus.CANCELLING:
            return BatchStatus.CANCELLED
        if status is BatchStatus.VALIDATING:
            num_rows, self._errors = await self._checked()
            if self._errors:
                return BatchStatus.FAILED
            in_progress = BatchStatus.IN_PROGRESS
            if not await self._ledger.move(batch_id, status, in_progress, total=num_rows):
                return BatchStatus.CANCELLED
        if status is not BatchStatus.FINALIZING:
            await self._run_rows()
            await self._ledger.move(batch_id, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
        return BatchStatus.COMPLETED

    async def _checked(self) -> tuple[int, list[LineError]]:
        check = InputCheck(
            self._batch.endpoint,
            max_rows=self._parts.options.max_rows,
            max_line_bytes=self._parts.options.max_line_bytes,
        )
        async for lines in self._lines():
            if not await anyio.to_thread.run_sync(check.feed, lines):
                break
        return check.num_rows, check.errors()

    async def _run_rows(self) -> None:
        """Short pauses are waited out without slots. Raises BatchPaused for long ones."""
        async with aclosing(self._open_rows()) as rows:
            while True:
                await self._run_until_pause(rows)
                if self._pause_s is None:
                    return
                if self._pause_s > _LONGEST_WAIT_S:
                    raise BatchPaused(self._pause_s)
                await anyio.sleep(max(_SHORTEST_WAIT_S, self._pause_s))
                self._pause_s = None

    async def _run_until_pause(self, rows: AsyncGenerator[BatchRow, None]) -> None:
        async with anyio.create_task_group() as group:
            while (row := self._put_back.pop() if self._put_back else await anext(rows, None)) is not None:
                await self._slots.acquire()
                if self._pause_s is not None:
                    self._put_back.append(row)
                    self._slots.release()
                    return
                group.start_soon(self._row, row)

    async def _lines(self) -> AsyncIterator[list[InputLine]]:
        splitter = LineSplitter(self._parts.options.max_line_bytes)
        async for part in self._parts.files.content(self._batch.input_file_id):
            yield await anyio.to_thread.run_sync(splitter.feed, part)
        yield splitter.end()

    async def _open_rows(self) -> AsyncGenerator[BatchRow, None]:
        ended = await self._ledger.ended_rows(self._batch.id)
        async for lines in self._lines():
            for line in lines:
                if line.content and line.number not in ended:
                    yield await _off_loop(len(line.content), parse_row, line, self._batch.endpoint)

    async def _row(self, row: BatchRow) -> None:
        """Retry while the row is not to blame: the queue is full, or the engine restarts."""
        try:
            answer = await self._run_row(self._batch.endpoint, row.body, self._batch.owner)
            while answer.retry_after_s is not None and not answer.pauses:
                await anyio.sleep(min(answer.retry_after_s, _LONGEST_RETRY_S))
                answer = await self._run_row(self._batch.endpoint, row.body, self._batch.owner)
            if answer.pauses:
                self._pause_s = answer.retry_after_s
                self._put_back.append(row)
                return
            result = await _off_loop(len(answer.body), row_result, self._batch.id, row, answer)
            await self._recorder.record(result)
        finally:
            self._slots.release()

    async def _commit(self, results: Sequence[RowResult]) -> None:
        try:
            await self._ledger.record(self._batch, results)
            self._parts.storage.grew(self._batch.owner, sum(len(row.content) for row in results))
        except LeaseLost:
            self.stop(StopReason.LEASE_LOST)

    async def _overdue(self) -> BatchStatus:
        """The committed state decides, because the window may end in the middle of a move."""
        status = await self._ledger.status(self._batch.id)
        if status is BatchStatus.FINALIZING:
            return BatchStatus.COMPLETED
        if status is BatchStatus.CANCELLING:
            return BatchStatus.CANCELLED
        if status is BatchStatus.IN_PROGRESS:
            await self._expire_rest()
        return BatchStatus.EXPIRED

    async def _expire_rest(self) -> None:
        results: list[RowResult] = []
        async for row in self._open_rows():
            results.append(expired(self._batch.id, row))
            if len(results) == _EXPIRED_AT_ONCE:
                await self._ledger.record(self._batch, results)
                results = []
        if results:
            await self._ledger.record(self._batch, results)


async def _off_loop(num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    if num_bytes <= _INLINE_BYTES:
        return work(*args, **kwargs)
    return await anyio.to_thread.run_sync(partial(work, *args, **kwargs))


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
            failure=unavailable_reason,
        )
        self._news = anyio.Event()

    async def run(self, run_row: RunRow) -> None:
        """Run batches until cancelled. They can then be resumed, elsewhere after `release`."""
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
