"""Batches as their owners see them. The methods are synchronous, and each is one transaction."""

from __future__ import annotations

import msgspec
from sqlalchemy import RowMapping, and_, insert, or_, select, update

from openai_cpu_server.errors import BatchConflict, JobObjectNotFound
from openai_cpu_server.jobs.records import BatchRecord, BatchStatus, Page, Purpose
from openai_cpu_server.jobs.store.files import file_not_found
from openai_cpu_server.jobs.store.tables import batches, files, rows_of
from openai_cpu_server.storage.database import Database


class BatchStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, batch: BatchRecord) -> BatchRecord:
        """Create a batch. Raises JobObjectNotFound if this owner has no such input file."""
        is_input = and_(
            files.c.id == batch.input_file_id,
            files.c.owner == batch.owner,
            files.c.purpose == Purpose.BATCH.value,
            or_(files.c.expires_at.is_(None), files.c.expires_at > batch.created_at),
        )
        with self._database.write() as connection:
            if connection.execute(select(files.c.id).where(is_input).with_for_update()).first() is None:
                raise file_not_found(batch.input_file_id, param="input_file_id")
            connection.execute(insert(batches).values(**msgspec.to_builtins(batch)))
        return batch

    def get(self, owner: str, batch_id: str) -> BatchRecord:
        """One batch. Raises JobObjectNotFound."""
        query = select(batches).where(batches.c.id == batch_id, batches.c.owner == owner)
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise _not_found(batch_id)
        return batch_record(row)

    def page(self, owner: str, page: Page) -> tuple[list[BatchRecord], bool]:
        """One page of batches, and whether there are more."""
        query = select(batches).where(batches.c.owner == owner)
        last = select(batches.c.number).where(batches.c.id == page.after, batches.c.owner == owner)
        with self._database.read() as connection:
            found = rows_of(connection, query, batches.c.number, page, last)
        if found is None:
            raise _not_found(str(page.after), param="after")
        return [batch_record(row) for row in found.rows], found.has_more

    def cancel(self, owner: str, batch_id: str, now_s: float) -> BatchRecord:
        """Ask for a cancellation; the runner ends the batch.
        Raises JobObjectNotFound, and BatchConflict if it is too late."""
        mine = and_(batches.c.id == batch_id, batches.c.owner == owner)
        with self._database.write() as connection:
            row = connection.execute(select(batches).where(mine).with_for_update()).mappings().first()
            if row is None:
                raise _not_found(batch_id)
            batch = batch_record(row)
            if batch.status is BatchStatus.CANCELLING:
                return batch
            if not batch.status.may_become(BatchStatus.CANCELLING):
                raise BatchConflict(f"Cannot cancel a batch with status '{batch.status.value}'.")
            moved = {"status": BatchStatus.CANCELLING, "cancelling_at": int(now_s)}
            connection.execute(update(batches).where(mine).values(msgspec.to_builtins(moved)))
        return msgspec.structs.replace(batch, status=BatchStatus.CANCELLING, cancelling_at=int(now_s))


def batch_record(row: RowMapping) -> BatchRecord:
    fields = {name: row[name] for name in BatchRecord.__struct_fields__}
    return msgspec.convert(fields, BatchRecord)


def _not_found(batch_id: str, *, param: str = "id") -> JobObjectNotFound:
    return JobObjectNotFound(f"No batch found with id '{batch_id[:128]}'.", param=param)
