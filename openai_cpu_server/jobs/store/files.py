"""Files in the database, uploaded piece by piece, so that others can write in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import anyio
import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select, update

from openai_cpu_server.errors import FileInUse, JobsUnavailable
from openai_cpu_server.jobs.records import ACTIVE, FilePurpose, FileRecord, PageQuery
from openai_cpu_server.jobs.store import database as db

PART_BYTES = 256 * 1024
_PARTS_AT_ONCE = 16
"""Yield to others in between."""
_PARTS_A_PIECE = 8
_PARTIAL = FilePurpose.PARTIAL.value
_LONGEST_S = 3600
"""Age at which a dead server's upload is deleted."""


class UploadSource(Protocol):
    def read(self, size: int, /) -> bytes: ...


def is_there(now_s: float) -> ColumnElement[bool]:
    return and_(
        db.files.c.purpose != _PARTIAL, or_(db.files.c.expires_at.is_(None), db.files.c.expires_at > now_s)
    )


FILES = db.OwnedTable(db.files, FileRecord, "No such File object: {id}", id_chars=128, is_live=is_there)


class FileStore(db.OwnedRepository[FileRecord]):
    table = FILES

    async def upload(self, record: FileRecord, content: UploadSource) -> FileRecord:
        """Return the record with the size. Failed uploads leave nothing."""
        await self.begin(record, until_s=record.created_at + _LONGEST_S)
        try:
            num_bytes, num_parts = 0, 0
            while piece := await asyncio.to_thread(_piece, content):
                await self.append(record.id, piece, first=num_parts + 1)
                num_parts += len(piece)
                num_bytes += sum(map(len, piece))
            stored = msgspec.structs.replace(record, bytes=num_bytes)
            await self.complete(stored)
        except BaseException:
            with anyio.CancelScope(shield=True), contextlib.suppress(JobsUnavailable):
                await self.prune(record.id)
            raise
        return stored

    @db.writes
    def begin(self, connection: Connection, record: FileRecord, *, until_s: int) -> None:
        """Uploads must be complete by `until_s`."""
        partial = msgspec.structs.replace(record, purpose=FilePurpose.PARTIAL, expires_at=until_s)
        connection.execute(insert(db.files).values(**msgspec.to_builtins(partial)))

    @db.writes
    def append(self, connection: Connection, file_id: str, content: Sequence[bytes], *, first: int) -> None:
        """`first`: number of the first part."""
        rows = [
            {"file_id": file_id, "number": number, "content": part}
            for number, part in enumerate(content, first)
        ]
        connection.execute(insert(db.parts), rows)

    @db.writes
    def complete(self, connection: Connection, record: FileRecord) -> None:
        """Publish an upload. Raises JobObjectNotFound."""
        is_partial = and_(db.files.c.id == record.id, db.files.c.purpose == _PARTIAL)
        change = update(db.files).where(is_partial).values(**msgspec.to_builtins(record))
        if connection.execute(change).rowcount != 1:
            raise FILES.not_found(record.id)

    @db.reads
    def page(
        self, connection: Connection, owner: str, page: PageQuery, purpose: FilePurpose | None = None
    ) -> tuple[list[FileRecord], bool]:
        filters = () if purpose is None else (db.files.c.purpose == purpose.value,)
        return FILES.page(connection, owner, page, is_there(self.clock()), *filters)

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        last = 0
        while found := await self.parts(file_id, last):
            for _, content in found:
                yield content
            last = found[-1][0]

    @db.reads
    def parts(self, connection: Connection, file_id: str, after: int) -> list[tuple[int, bytes]]:
        """Return at most 4 MB of parts after number `after` (the first is 1)."""
        query = select(db.parts.c.number, db.parts.c.content).where(db.parts.c.file_id == file_id)
        query = query.where(db.parts.c.number > after).order_by(db.parts.c.number).limit(_PARTS_AT_ONCE)
        return [(number, content) for number, content in connection.execute(query)]

    @db.writes
    def delete(self, connection: Connection, owner: str, file_id: str) -> None:
        """Hide a file until `prune`. Raises FileInUse for the input of an unfinished batch."""
        record = self.own(connection, owner, file_id, lock=True)
        uses = (db.batches.c.input_file_id == record.id, db.batches.c.status.in_(ACTIVE))
        user = connection.execute(select(db.batches.c.id).where(*uses)).scalar()
        if user is not None:
            raise FileInUse(record.id, user)
        hidden = {"purpose": _PARTIAL, "expires_at": 0}
        connection.execute(update(db.files).where(db.files.c.id == record.id).values(hidden))

    @db.reads
    def expired(self, connection: Connection) -> list[str]:
        """Return expired files that no unfinished batch reads."""
        used = select(db.batches.c.input_file_id).where(db.batches.c.status.in_(ACTIVE))
        old = select(db.files.c.id).where(db.files.c.expires_at <= self.clock(), db.files.c.id.not_in(used))
        return list(connection.execute(old).scalars())

    async def prune_expired(self) -> None:
        for file_id in await self.expired():
            await self.prune(file_id)

    async def prune(self, file_id: str) -> None:
        while await self.prune_some(db.storable(file_id)):
            pass

    @db.writes
    def prune_some(self, connection: Connection, file_id: str) -> bool:
        """Return True if more parts are left."""
        own = db.parts.c.file_id == file_id
        some = select(db.parts.c.number).where(own).order_by(db.parts.c.number).limit(_PARTS_AT_ONCE)
        numbers = connection.execute(some).scalars().all()
        connection.execute(delete(db.parts).where(own, db.parts.c.number.in_(numbers)))
        has_more = len(numbers) == _PARTS_AT_ONCE
        if not has_more:
            connection.execute(delete(db.files).where(db.files.c.id == file_id))
        return has_more


def _piece(content: UploadSource) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < _PARTS_A_PIECE and (part := content.read(PART_BYTES)):
        found.append(part)
    return found
