"""Batches in the database."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil
from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select, update

from openai_cpu_server.errors import BatchConflict, JobObjectNotFound, ServerError
from openai_cpu_server.jobs.records import (
    ACTIVE,
    BatchRecord,
    BatchStatus,
    FilePurpose,
    FileRecord,
    LineError,
    PageQuery,
    RowResult,
)
from openai_cpu_server.jobs.store.database import batches, files, page_of, parts, record_of, results
from openai_cpu_server.jobs.store.files import file_not_found
from openai_cpu_server.storage.database import Database

_PID_NAMESPACE = Path("/proc/self/ns/pid")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19
"""Field of /proc/PID/stat, counted behind the program's name."""


def new_holder() -> str:
    """Return `NODE PID START NONCE`. The nonce distinguishes two runners of this process."""
    return f"{_node()} {os.getpid()} {_start_of(os.getpid())} {secrets.token_hex(4)}"


def is_left_behind(holder: str, lease_until: float | None, now_s: float) -> bool:
    """Return True if the holder has stopped. A process on this node is looked up, because a changed clock
    ends no process; leases of others expire."""
    node, pid, start, _ = holder.split(" ")
    if node != _node():
        return lease_until is not None and lease_until <= now_s
    try:
        return _start_of(int(pid)) != start
    except (OSError, psutil.NoSuchProcess):
        return True


def _start_of(pid: int) -> str:
    """Unaffected by changes of the machine's clock. Raises OSError, psutil.NoSuchProcess."""
    if not _BOOT_ID.exists():  # not Linux
        return f"{psutil.Process(pid).create_time():.2f}"
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{_BOOT_ID.read_text().strip()}:{fields[_START_FIELD]}"


def _node() -> str:
    """Host and container, because process ids are unique only within both."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = f"/{_PID_NAMESPACE.stat().st_ino}"
    return (platform.node() or "localhost").replace(" ", "_") + namespace


class BatchStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, batch: BatchRecord) -> BatchRecord:
        """Create a batch. Raises JobObjectNotFound if the owner has no such input file."""
        is_input = and_(
            files.c.id == batch.input_file_id,
            files.c.owner == batch.owner,
            files.c.purpose == FilePurpose.BATCH.value,
            or_(files.c.expires_at.is_(None), files.c.expires_at > batch.created_at),
        )
        with self._database.write() as connection:
            if connection.execute(select(files.c.id).where(is_input).with_for_update()).first() is None:
                raise file_not_found(batch.input_file_id, param="input_file_id")
            connection.execute(insert(batches).values(**msgspec.to_builtins(batch)))
        return batch

    def get(self, owner: str, batch_id: str) -> BatchRecord:
        """Return one batch. Raises JobObjectNotFound."""
        query = select(batches).where(batches.c.id == batch_id, batches.c.owner == owner)
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise _not_found(batch_id)
        return record_of(BatchRecord, row)

    def page(self, owner: str, page: PageQuery) -> tuple[list[BatchRecord], bool]:
        """Return a page of batches, and True if there are more. Raises JobObjectNotFound."""
        query = select(batches).where(batches.c.owner == owner)
        last = select(batches.c.number).where(batches.c.id == page.after, batches.c.owner == owner)
        with self._database.read() as connection:
            found = page_of(connection, BatchRecord, query, batches.c.number, page, last)
        if found is None:
            raise _not_found(str(page.after), param="after")
        return found

    def cancel(self, owner: str, batch_id: str, now_s: float) -> BatchRecord:
        """Ask the runner to cancel. Raises JobObjectNotFound, or BatchConflict if it is too late."""
        mine = and_(batches.c.id == batch_id, batches.c.owner == owner)
        with self._database.write() as connection:
            row = connection.execute(select(batches).where(mine).with_for_update()).mappings().first()
            if row is None:
                raise _not_found(batch_id)
            batch = record_of(BatchRecord, row)
            if batch.status is BatchStatus.CANCELLING:
                return batch
            if not batch.status.may_become(BatchStatus.CANCELLING):
                raise BatchConflict(f"Cannot cancel a batch with status '{batch.status.value}'.")
            moved = {"status": BatchStatus.CANCELLING, "cancelling_at": int(now_s)}
            connection.execute(update(batches).where(mine).values(msgspec.to_builtins(moved)))
        return msgspec.structs.replace(batch, status=BatchStatus.CANCELLING, cancelling_at=int(now_s))


def _not_found(batch_id: str, *, param: str = "id") -> JobObjectNotFound:
    return JobObjectNotFound(f"No batch found with id '{batch_id[:128]}'.", param=param)


class LeaseLost(ServerError):
    """Another process runs this batch now."""


class BatchLedger:
    """Writes raise LeaseLost if another process has the lease. `holder` comes from `new_holder`, and
    others wait `lease_s` for a vanished host."""

    def __init__(self, database: Database, *, holder: str, lease_s: float) -> None:
        self._database = database
        self._holder = holder
        self._lease_s = lease_s

    def unfinished(self, model: str, now_s: float) -> list[BatchRecord]:
        """Return free batches of this model, and any that only have to be ended, oldest first."""
        wanted = or_(
            batches.c.model == model,
            batches.c.expires_at <= now_s,
            batches.c.status == BatchStatus.CANCELLING.value,
        )
        query = select(batches).where(batches.c.status.in_(ACTIVE), wanted).order_by(batches.c.number)
        with self._database.read() as connection:
            found = [record_of(BatchRecord, row) for row in connection.execute(query).mappings()]
        return [batch for batch in found if _is_free(batch, now_s)]

    def claim(self, batch: BatchRecord, now_s: float) -> bool:
        """Take the lease. Returns False if the batch has ended or another process was faster."""
        unchanged = batches.c.lease_holder.is_not_distinct_from(batch.lease_holder)
        free = and_(batches.c.id == batch.id, batches.c.status.in_(ACTIVE), unchanged)
        lease = {"lease_holder": self._holder, "lease_until": now_s + self._lease_s}
        with self._database.write() as connection:
            return connection.execute(update(batches).where(free).values(lease)).rowcount == 1

    def renew(self, now_s: float) -> dict[str, BatchStatus]:
        """Return the states of the batches whose lease is still ours."""
        ours = batches.c.lease_holder == self._holder
        with self._database.write() as connection:
            connection.execute(update(batches).where(ours).values(lease_until=now_s + self._lease_s))
            found = connection.execute(select(batches.c.id, batches.c.status).where(ours))
            return {batch_id: BatchStatus(status) for batch_id, status in found}

    def release(self, batch_id: str) -> None:
        free = {"lease_holder": None, "lease_until": None}
        with self._database.write() as connection:
            connection.execute(update(batches).where(self._held(batch_id)).values(free))

    def begin(self, batch_id: str, *, num_rows: int, now_s: float) -> bool:
        """Return False if the batch was cancelled. Raises LeaseLost."""
        moved = {"status": "in_progress", "in_progress_at": int(now_s), "total": num_rows}
        return self._move(batch_id, BatchStatus.VALIDATING, moved)

    def begin_end(self, batch_id: str, *, now_s: float) -> bool:
        """Return False if the batch was cancelled. Raises LeaseLost."""
        moved = {"status": "finalizing", "finalizing_at": int(now_s)}
        return self._move(batch_id, BatchStatus.IN_PROGRESS, moved)

    def status(self, batch_id: str) -> BatchStatus:
        """Read the state. Raises LeaseLost."""
        with self._database.read() as connection:
            found = connection.execute(select(batches.c.status).where(self._held(batch_id))).scalar()
        if found is None:
            raise LeaseLost(batch_id)
        return BatchStatus(found)

    def ended_rows(self, batch_id: str) -> set[int]:
        with self._database.read() as connection:
            query = select(results.c.line).where(results.c.batch_id == batch_id)
            return set(connection.execute(query).scalars())

    def record(self, batch: BatchRecord, rows: Sequence[RowResult]) -> None:
        """Commit results, only the first for each line. Raises LeaseLost."""
        with self._database.write() as connection:
            counted = connection.execute(update(batches).where(self._held(batch.id)).values(_counts(rows)))
            if counted.rowcount != 1:
                raise LeaseLost(batch.id)
            connection.execute(insert(results), [{"batch_id": batch.id, "line": row.line} for row in rows])
            connection.execute(insert(parts), [_part(batch, row) for row in rows])

    def finish(
        self, batch_id: str, ending: BatchStatus, *, now_s: float, errors: Sequence[LineError] = ()
    ) -> BatchStatus:
        """End the batch, or cancel it if requested, and publish its rows. Raises LeaseLost."""
        with self._database.write() as connection:
            query = select(batches).where(self._held(batch_id)).with_for_update()
            row = connection.execute(query).mappings().first()
            if row is None:
                raise LeaseLost(batch_id)
            batch = record_of(BatchRecord, row)
            if batch.status is BatchStatus.CANCELLING:
                ending = BatchStatus.CANCELLED
            assert batch.status.may_become(ending), f"{batch.status.value} -> {ending.value}"
            moved = {
                "status": ending.value,
                ending.moment: int(now_s),
                "errors": msgspec.to_builtins(errors) or None,
            }
            free = {"lease_holder": None, "lease_until": None}
            connection.execute(update(batches).where(batches.c.id == batch_id).values({**moved, **free}))
            _publish(connection, batch, now_s)
            connection.execute(delete(results).where(results.c.batch_id == batch_id))
        return ending

    def _move(self, batch_id: str, before: BatchStatus, moved: Mapping[str, object]) -> bool:
        with self._database.write() as connection:
            held = self._held(batch_id)
            change = update(batches).where(held, batches.c.status == before.value).values(moved)
            if connection.execute(change).rowcount == 1:
                return True
            if connection.execute(select(batches.c.id).where(held)).first() is None:
                raise LeaseLost(batch_id)
            return False

    def _held(self, batch_id: str) -> ColumnElement[bool]:
        return and_(batches.c.id == batch_id, batches.c.lease_holder == self._holder)


def _is_free(batch: BatchRecord, now_s: float) -> bool:
    return batch.lease_holder is None or is_left_behind(batch.lease_holder, batch.lease_until, now_s)


def _counts(rows: Sequence[RowResult]) -> dict[str, ColumnElement[int]]:
    return {
        "completed": batches.c.completed + sum(row.is_ok for row in rows),
        "failed": batches.c.failed + sum(not row.is_ok for row in rows),
        "input_tokens": batches.c.input_tokens + sum(row.input_tokens for row in rows),
        "cached_tokens": batches.c.cached_tokens + sum(row.cached_tokens for row in rows),
        "output_tokens": batches.c.output_tokens + sum(row.output_tokens for row in rows),
    }


def _part(batch: BatchRecord, row: RowResult) -> dict[str, object]:
    file_id = batch.output_id if row.is_ok else batch.error_id
    return {"file_id": file_id, "number": row.line, "content": row.content}


def _publish(connection: Connection, batch: BatchRecord, now_s: float) -> None:
    outputs = ((batch.output_id, "output", batch.completed), (batch.error_id, "error", batch.failed))
    for file_id, kind, num_rows in outputs:
        if num_rows == 0:
            continue
        size = select(func.sum(func.length(parts.c.content))).where(parts.c.file_id == file_id)
        lifetime = batch.output_expires_s
        record = FileRecord(
            id=file_id,
            owner=batch.owner,
            purpose=FilePurpose.BATCH_OUTPUT,
            filename=f"{batch.id}_{kind}.jsonl",
            bytes=int(connection.execute(size).scalar_one()),
            created_at=int(now_s),
            expires_at=None if lifetime is None else int(now_s) + lifetime,
        )
        connection.execute(insert(files).values(**msgspec.to_builtins(record)))
