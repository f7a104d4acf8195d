"""Files and batches for the API."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from openai_cpu_server.errors import wrong_value
from openai_cpu_server.jobs import records
from openai_cpu_server.jobs.responses import ResponseRepository
from openai_cpu_server.jobs.run.batch import BatchParts, BatchRunner
from openai_cpu_server.jobs.run.rows import RunRow
from openai_cpu_server.jobs.store.batches import BatchLedger, BatchStore
from openai_cpu_server.jobs.store.database import storable
from openai_cpu_server.jobs.store.files import FileStore, UploadSource
from openai_cpu_server.jobs.store.storage import DiskSpace, StorageQuotas, disk_space
from openai_cpu_server.jobs.usage import UsageBook
from openai_cpu_server.storage.database import Database, DatabaseThreads

_SPAN = re.compile(r"(?=[0-9])(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,7})s)?")
_MAX_S = 30 * 24 * 3600


def window_seconds(text: str) -> int:
    """Return the seconds of `24h`, `90m`, `1h30m` or `45s`. Raises InvalidRequest."""
    found = _SPAN.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= _MAX_S:
        raise wrong_value("completion_window", "a span such as '24h', '90m' or '1h30m', at most 720h")
    return total


ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank")


class Jobs:
    """Call `run`, `keep_book` and `close` once each, the rest in between, from one event loop. Objects of
    other owners raise JobObjectNotFound."""

    def __init__(
        self,
        database: Database,
        options: records.JobOptions,
        *,
        clock: Callable[[], float] = time.time,
        space: Callable[[Path], DiskSpace] = disk_space,
    ) -> None:
        self._database = database
        self._model = options.model
        self._clock = clock
        self._threads = DatabaseThreads(database, "jobs-db")
        place = database, self._threads, clock
        self.storage = StorageQuotas(*place, space)
        self.files, self.batches, self.usage = FileStore(*place), BatchStore(*place), UsageBook(*place)
        ledger = BatchLedger(*place, lease_s=options.lease_s)
        self._runner = BatchRunner(BatchParts(self.files, ledger, self.storage, options, clock))
        self.responses = ResponseRepository(
            *place, storage=self.storage, lifetime_s=int(options.response_lifetime_s)
        )
        self._running: anyio.CancelScope | None = None
        self._keeping: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._closing = anyio.Lock()
        self._is_closed = False

    async def run(self, run_row: RunRow) -> None:
        """Run batches, those of earlier processes first, until `stop` or `close`."""
        if self._is_closed:
            return
        try:
            with anyio.CancelScope() as self._running:
                await self._runner.run(run_row)
        finally:
            self._ended.set()

    async def keep_book(self) -> None:
        """Write usage until `close`, because requests end after `stop` while the server drains."""
        if self._is_closed:
            return
        with anyio.CancelScope() as self._keeping:
            await self.usage.run()

    async def stop(self) -> None:
        """Stop at once. Running rows are computed again after a later start."""
        if self._running is not None:
            self._running.cancel()
            await self._ended.wait()
        await self._runner.release()

    async def close(self) -> None:
        """Stop, and close the database. Later callers wait for the same end."""
        async with self._closing:
            if not self._is_closed:
                self._is_closed = True
                await self.stop()
                if self._keeping is not None:
                    self._keeping.cancel()
                await self.usage.save()
                await self._threads.close()
                self._database.close()

    async def add_file(
        self,
        owner: str,
        filename: str,
        content: UploadSource,
        *,
        purpose: records.FilePurpose = records.FilePurpose.BATCH,
        num_bytes: int = 0,
        limits: records.StorageLimits = records.NO_LIMITS,
        lifetime_s: int | None = None,
    ) -> records.FileRecord:
        """Store a file. Raises StorageFull, DiskFull; `lifetime_s`: None to keep it."""
        now = int(self._clock())
        record = records.FileRecord(
            id=_new_id("file-"),
            owner=owner,
            purpose=purpose,
            filename=storable(filename),
            bytes=0,
            created_at=now,
            expires_at=None if lifetime_s is None else now + lifetime_s,
        )
        async with self.storage.reserved(
            owner, limits, records.StoredAmount(num_bytes=num_bytes, num_files=1)
        ):
            return await self.files.upload(record, content)

    async def delete_file(self, owner: str, file_id: str) -> None:
        """Delete a file. Raises FileInUse."""
        await self.files.delete(owner, file_id)
        self.storage.changed(owner)
        self._runner.resume()
        await self.files.prune(file_id)

    async def create_batch(
        self,
        owner: str,
        *,
        input_file_id: str,
        endpoint: str,
        completion_window: str,
        metadata: dict[str, str] | None = None,
        output_lifetime_s: int | None = None,
        limits: records.StorageLimits = records.NO_LIMITS,
    ) -> records.BatchRecord:
        """Create a batch. Raises InvalidRequest, StorageFull, DiskFull."""
        if endpoint not in ENDPOINTS:
            raise wrong_value("endpoint", " or ".join(f"'{name}'" for name in ENDPOINTS))
        await self.storage.check(owner, limits, records.StoredAmount(num_bytes=1))
        now, batch_id = int(self._clock()), _new_id("batch_")
        batch = records.BatchRecord(
            id=batch_id,
            owner=owner,
            model=self._model,
            endpoint=endpoint,
            input_file_id=storable(input_file_id),
            output_id=_new_id("file-"),
            error_id=_new_id("file-"),
            completion_window=completion_window,
            metadata=metadata,
            output_expires_s=output_lifetime_s,
            created_at=now,
            expires_at=now + window_seconds(completion_window),
        )
        created = await self.batches.create(batch)
        self._runner.wake()
        return created

    async def cancel_batch(self, owner: str, batch_id: str) -> records.BatchRecord:
        """End running rows, and keep finished ones. Raises BatchConflict."""
        batch = await self.batches.cancel(owner, batch_id)
        self._runner.cancel(batch_id)
        return batch


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(16)
