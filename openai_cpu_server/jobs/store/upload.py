"""An upload goes into the database piece by piece, so that others write between."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import anyio
import msgspec

from openai_cpu_server.errors import JobsUnavailable
from openai_cpu_server.jobs.records import FileRecord
from openai_cpu_server.jobs.store.files import PART_BYTES, FileStore
from openai_cpu_server.storage.database import DatabaseThreads

_PARTS_A_PIECE = 8
_LONGEST_S = 3600
"""What a server that died has left of an upload is swept away after so long."""


class Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


async def upload(
    files: FileStore, threads: DatabaseThreads, record: FileRecord, content: Source
) -> FileRecord:
    """Returns the record with the size. Of an upload that fails nothing is left."""
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
    """Removes a file that nobody sees any more, piece by piece."""
    while await threads.write(files.prune, file_id):
        pass


def _piece(content: Source) -> list[bytes]:
    """The next parts; [] at the end."""
    found: list[bytes] = []
    while len(found) < _PARTS_A_PIECE and (part := content.read(PART_BYTES)):
        found.append(part)
    return found
