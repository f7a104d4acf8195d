"""Files in the database. Uploads go in piece by piece, so that others can write in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

import anyio
import msgspec
from sqlalchemy import ColumnElement, and_, delete, insert, or_, select, update

from openai_cpu_server.errors import FileInUse, JobObjectNotFound, JobsUnavailable
from openai_cpu_server.jobs.records import ACTIVE, FilePurpose, FileRecord, PageQuery
from openai_cpu_server.jobs.store.database import batches, files, page_of, parts, record_of
from openai_cpu_server.storage.database import Database, DatabaseThreads

PART_BYTES = 256 * 1024
_PARTS_AT_ONCE = 16
"""Others get their turn in between."""
_PARTIAL = FilePurpose.PARTIAL.value


class FileStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, record: FileRecord, *, until_s: int) -> None:
        """An upload that is not complete by `until_s` is deleted."""
        partial = msgspec.structs.replace(record, purpose=FilePurpose.PARTIAL, expires_at=until_s)
        with self._database.write() as connection:
            connection.execute(insert(files).values(**msgspec.to_builtins(partial)))

    def append(self, file_id: str, content: Sequence[bytes], *, first: int) -> None:
        """`first`: number of the first part."""
        rows = [
            {"file_id": file_id, "number": number, "content": part}
            for number, part in enumerate(content, first)
        ]
        with self._database.write() as connection:
            connection.execute(insert(parts), rows)

    def complete(self, record: FileRecord) -> None:
        """Publish an upload. Raises JobObjectNotFound if it was deleted."""
        begun = and_(files.c.id == record.id, files.c.purpose == _PARTIAL)
        with self._database.write() as connection:
            change = update(files).where(begun).values(**msgspec.to_builtins(record))
            if connection.execute(change).rowcount != 1:
                raise file_not_found(record.id)

    def get(self, owner: str, file_id: str, now_s: float) -> FileRecord:
        """Return a file's record. Raises JobObjectNotFound."""
        with self._database.read() as connection:
            row = connection.execute(select(files).where(_visible(owner, file_id, now_s))).mappings().first()
        if row is None:
            raise file_not_found(file_id)
        return record_of(FileRecord, row)

    def page(
        self, owner: str, page: PageQuery, now_s: float, purpose: FilePurpose | None = None
    ) -> tuple[list[FileRecord], bool]:
        """Return a page of files, and True if there are more. Raises JobObjectNotFound."""
        query = select(files).where(files.c.owner == owner, is_there(now_s))
        if purpose is not None:
            query = query.where(files.c.purpose == purpose.value)
        last = select(files.c.number).where(files.c.id == page.after, files.c.owner == owner)
        with self._database.read() as connection:
            found = page_of(connection, FileRecord, query, files.c.number, page, last)
        if found is None:
            raise file_not_found(str(page.after), param="after")
        return found

    def parts(self, file_id: str, after: int) -> list[tuple[int, bytes]]:
        """Return at most 4 MB of parts after number `after` (the first is 1), or []."""
        query = select(parts.c.number, parts.c.content).where(parts.c.file_id == file_id)
        query = query.where(parts.c.number > after).order_by(parts.c.number).limit(_PARTS_AT_ONCE)
        with self._database.read() as connection:
            return [(number, content) for number, content in connection.execute(query)]

    def delete(self, owner: str, file_id: str, now_s: float) -> None:
        """Hide a file until `prune`. Raises JobObjectNotFound, or FileInUse for the input of an unfinished
        batch."""
        with self._database.write() as connection:
            seen = select(files.c.id).where(_visible(owner, file_id, now_s)).with_for_update()
            if connection.execute(seen).first() is None:
                raise file_not_found(file_id)
            uses = (batches.c.input_file_id == file_id, batches.c.status.in_(ACTIVE))
            user = connection.execute(select(batches.c.id).where(*uses)).scalar()
            if user is not None:
                raise FileInUse(file_id, user)
            gone = {"purpose": _PARTIAL, "expires_at": 0}
            connection.execute(update(files).where(files.c.id == file_id).values(gone))

    def expired(self, now_s: float) -> list[str]:
        """Return expired files that no unfinished batch reads."""
        used = select(batches.c.input_file_id).where(batches.c.status.in_(ACTIVE))
        old = select(files.c.id).where(files.c.expires_at <= now_s, files.c.id.not_in(used))
        with self._database.read() as connection:
            return list(connection.execute(old).scalars())

    def prune(self, file_id: str) -> bool:
        """Remove some parts of a hidden file, and return True if there are more."""
        own = parts.c.file_id == file_id
        some = select(parts.c.number).where(own).order_by(parts.c.number).limit(_PARTS_AT_ONCE)
        with self._database.write() as connection:
            numbers = connection.execute(some).scalars().all()
            connection.execute(delete(parts).where(own, parts.c.number.in_(numbers)))
            has_more = len(numbers) == _PARTS_AT_ONCE
            if not has_more:
                connection.execute(delete(files).where(files.c.id == file_id))
        return has_more


def file_not_found(file_id: str, *, param: str = "id") -> JobObjectNotFound:
    return JobObjectNotFound(f"No such File object: {file_id[:128]}", param=param)


def is_there(now_s: float) -> ColumnElement[bool]:
    return and_(files.c.purpose != _PARTIAL, or_(files.c.expires_at.is_(None), files.c.expires_at > now_s))


def _visible(owner: str, file_id: str, now_s: float) -> ColumnElement[bool]:
    return and_(files.c.id == file_id, files.c.owner == owner, is_there(now_s))


_PARTS_A_PIECE = 8
_LONGEST_S = 3600
"""After that, the rest of a dead server's upload is deleted."""


class UploadSource(Protocol):
    def read(self, size: int, /) -> bytes: ...


async def upload(
    files: FileStore, threads: DatabaseThreads, record: FileRecord, content: UploadSource
) -> FileRecord:
    """Return the record with the size. A failed upload leaves nothing."""
    await threads.write(files.begin, record, until_s=record.created_at + _LONGEST_S)
    try:
        num_bytes, num_parts = 0, 0
        while piece := await asyncio.to_thread(_piece, content):
            await threads.write(files.append, record.id, piece, first=num_parts + 1)
            num_parts += len(piece)
            num_bytes += sum(map(len, piece))
        stored = msgspec.structs.replace(record, bytes=num_bytes)
        await threads.write(files.complete, stored)
    except BaseException:
        with anyio.CancelScope(shield=True), contextlib.suppress(JobsUnavailable):
            await prune(files, threads, record.id)
        raise
    return stored


async def prune(files: FileStore, threads: DatabaseThreads, file_id: str) -> None:
    while await threads.write(files.prune, file_id):
        pass


def _piece(content: UploadSource) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < _PARTS_A_PIECE and (part := content.read(PART_BYTES)):
        found.append(part)
    return found
