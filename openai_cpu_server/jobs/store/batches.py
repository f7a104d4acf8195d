from __future__ import annotations

import contextlib
import os
import platform
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select, update

from openai_cpu_server.errors import BatchConflict, ServerError
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
from openai_cpu_server.jobs.store import database as db
from openai_cpu_server.jobs.store.files import FILES

_PID_NAMESPACE = Path("/proc/self/ns/pid")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19
"""Counted behind the program's name."""


def new_holder() -> str:
    """Return `NODE PID START NONCE`. The nonce distinguishes two runners of this process."""
    return f"{_node()} {os.getpid()} {_start_of(os.getpid())} {secrets.token_hex(4)}"


def is_left_behind(holder: str, lease_until: float | None, now_s: float) -> bool:
    """Return True if the holder has stopped. A process on this node is looked up, because the clock may
    change; leases of others expire."""
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


_BATCHES = db.OwnedTable(db.batches, BatchRecord, "No batch found with id '{id}'.", id_chars=128)


class BatchStore(db.OwnedRepository[BatchRecord]):
    table = _BATCHES

    @db.writes
    def create(self, connection: Connection, batch: BatchRecord) -> BatchRecord:
        """Create a batch. Raises JobObjectNotFound if the owner has no such input file."""
        is_input = and_(
            FILES.one(batch.owner, batch.input_file_id, batch.created_at),
            db.files.c.purpose == FilePurpose.BATCH.value,
        )
        if connection.execute(select(db.files.c.id).where(is_input).with_for_update()).first() is None:
            raise FILES.not_found(batch.input_file_id, param="input_file_id")
        connection.execute(insert(db.batches).values(**msgspec.to_builtins(batch)))
        return batch

    @db.reads
    def page(self, connection: Connection, owner: str, page: PageQuery) -> tuple[list[BatchRecord], bool]:
        return _BATCHES.page(connection, owner, page)

    @db.writes
    def cancel(self, connection: Connection, owner: str, batch_id: str) -> BatchRecord:
        """Mark the batch for the runner to cancel. Raises BatchConflict if it is too late."""
        batch = self.own(connection, owner, batch_id, lock=True)
        if batch.status is BatchStatus.CANCELLING:
            return batch
        if not batch.status.may_become(BatchStatus.CANCELLING):
            raise BatchConflict(f"Cannot cancel a batch with status '{batch.status.value}'.")
        moved = {"status": BatchStatus.CANCELLING, "cancelling_at": self.now_s}
        own = db.batches.c.id == batch.id
        connection.execute(update(db.batches).where(own).values(msgspec.to_builtins(moved)))
        return msgspec.structs.replace(batch, **moved)


class LeaseLost(ServerError):
    """Another process runs this batch now."""


@dataclass(eq=False, kw_only=True)
class BatchLedger(db.Repository):
    """Batches as their runner sees them. Writes raise LeaseLost if another process has the lease; others wait
    `lease_s` for a vanished host."""

    lease_s: float
    holder: str = field(default_factory=new_holder)

    @db.reads
    def unfinished(self, connection: Connection, model: str) -> list[BatchRecord]:
        """Return free batches of this model, and any to be ended, oldest first."""
        now_s = self.clock()
        wanted = or_(
            db.batches.c.model == model,
            db.batches.c.expires_at <= now_s,
            db.batches.c.status == BatchStatus.CANCELLING.value,
        )
        query = (
            select(db.batches).where(db.batches.c.status.in_(ACTIVE), wanted).order_by(db.batches.c.number)
        )
        found = [db.record_of(BatchRecord, row) for row in connection.execute(query).mappings()]
        return [
            batch
            for batch in found
            if batch.lease_holder is None or is_left_behind(batch.lease_holder, batch.lease_until, now_s)
        ]

    @db.writes
    def claim(self, connection: Connection, batch: BatchRecord) -> bool:
        """Return False if the batch has ended or another process was faster."""
        unchanged = db.batches.c.lease_holder.is_not_distinct_from(batch.lease_holder)
        free = and_(db.batches.c.id == batch.id, db.batches.c.status.in_(ACTIVE), unchanged)
        lease = {"lease_holder": self.holder, "lease_until": self.clock() + self.lease_s}
        return connection.execute(update(db.batches).where(free).values(lease)).rowcount == 1

    @db.writes
    def renew(self, connection: Connection) -> dict[str, BatchStatus]:
        """Return the states of batches with our lease."""
        ours = db.batches.c.lease_holder == self.holder
        lease_until = self.clock() + self.lease_s
        connection.execute(update(db.batches).where(ours).values(lease_until=lease_until))
        found = connection.execute(select(db.batches.c.id, db.batches.c.status).where(ours))
        return {batch_id: BatchStatus(status) for batch_id, status in found}

    @db.writes
    def release(self, connection: Connection, batch_id: str) -> None:
        connection.execute(update(db.batches).where(self._held(batch_id)).values(_FREE))

    @db.writes
    def move(
        self, connection: Connection, /, batch_id: str, before: BatchStatus, after: BatchStatus, **values: int
    ) -> bool:
        """Return False for a cancelled batch."""
        held = self._held(batch_id)
        moved = {"status": after.value, after.moment: self.now_s, **values}
        change = update(db.batches).where(held, db.batches.c.status == before.value).values(moved)
        if connection.execute(change).rowcount == 1:
            return True
        if connection.execute(select(db.batches.c.id).where(held)).first() is None:
            raise LeaseLost(batch_id)
        return False

    @db.reads
    def status(self, connection: Connection, batch_id: str) -> BatchStatus:
        found = connection.execute(select(db.batches.c.status).where(self._held(batch_id))).scalar()
        if found is None:
            raise LeaseLost(batch_id)
        return BatchStatus(found)

    @db.reads
    def ended_rows(self, connection: Connection, batch_id: str) -> set[int]:
        query = select(db.results.c.line).where(db.results.c.batch_id == batch_id)
        return set(connection.execute(query).scalars())

    @db.writes
    def record(self, connection: Connection, batch: BatchRecord, rows: Sequence[RowResult]) -> None:
        """Commit the first result for each line."""
        counts = {
            "completed": db.batches.c.completed + sum(row.is_ok for row in rows),
            "failed": db.batches.c.failed + sum(not row.is_ok for row in rows),
            "input_tokens": db.batches.c.input_tokens + sum(row.input_tokens for row in rows),
            "cached_tokens": db.batches.c.cached_tokens + sum(row.cached_tokens for row in rows),
            "output_tokens": db.batches.c.output_tokens + sum(row.output_tokens for row in rows),
        }
        counted = connection.execute(update(db.batches).where(self._held(batch.id)).values(counts))
        if counted.rowcount != 1:
            raise LeaseLost(batch.id)
        connection.execute(insert(db.results), [{"batch_id": batch.id, "line": row.line} for row in rows])
        new_parts = [
            {
                "file_id": batch.output_id if row.is_ok else batch.error_id,
                "number": row.line,
                "content": row.content,
            }
            for row in rows
        ]
        connection.execute(insert(db.parts), new_parts)

    @db.writes
    def finish(
        self, connection: Connection, batch_id: str, ending: BatchStatus, *, errors: Sequence[LineError] = ()
    ) -> BatchStatus:
        """End the batch, as cancelled if requested, and publish its rows."""
        batch = _BATCHES.find(connection, self._held(batch_id), lock=True)
        if batch is None:
            raise LeaseLost(batch_id)
        if batch.status is BatchStatus.CANCELLING:
            ending = BatchStatus.CANCELLED
        assert batch.status.may_become(ending), f"{batch.status.value} -> {ending.value}"
        values = {
            "status": ending.value,
            ending.moment: self.now_s,
            "errors": msgspec.to_builtins(errors) or None,
            **_FREE,
        }
        connection.execute(update(db.batches).where(db.batches.c.id == batch_id).values(values))
        _publish(connection, batch, self.now_s)
        connection.execute(delete(db.results).where(db.results.c.batch_id == batch_id))
        return ending

    def _held(self, batch_id: str) -> ColumnElement[bool]:
        return and_(db.batches.c.id == batch_id, db.batches.c.lease_holder == self.holder)


_FREE = {"lease_holder": None, "lease_until": None}


def _publish(connection: Connection, batch: BatchRecord, now_s: int) -> None:
    outputs = ((batch.output_id, "output", batch.completed), (batch.error_id, "error", batch.failed))
    for file_id, kind, num_rows in outputs:
        if num_rows == 0:
            continue
        size = select(func.sum(func.length(db.parts.c.content))).where(db.parts.c.file_id == file_id)
        lifetime = batch.output_expires_s
        record = FileRecord(
            id=file_id,
            owner=batch.owner,
            purpose=FilePurpose.BATCH_OUTPUT,
            filename=f"{batch.id}_{kind}.jsonl",
            bytes=int(connection.execute(size).scalar_one()),
            created_at=now_s,
            expires_at=None if lifetime is None else now_s + lifetime,
        )
        connection.execute(insert(db.files).values(**msgspec.to_builtins(record)))
