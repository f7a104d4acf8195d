"""What is stored of an owner, counted in the tables that hold it. Synchronous; one transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, select

from openai_cpu_server.jobs.records import ACTIVE, Stored
from openai_cpu_server.jobs.store.files import is_there
from openai_cpu_server.jobs.store.tables import (
    batches,
    files,
    parts,
    response_events,
    response_items,
    responses,
)
from openai_cpu_server.storage.database import Database

_ACTIVE = tuple(status.value for status in ACTIVE)


class SizeStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def stored(self, owner: str, now_s: float) -> Stored:
        """Files, results of batches that still run, and responses, as far as they have not expired."""
        own = select(func.count(), _sum(files.c.bytes)).where(files.c.owner == owner, is_there(now_s))
        with self._database.read() as connection:
            num_files, file_bytes = connection.execute(own).one()
            others = sum(_scalar(connection, query) for query in (_results(owner), *_responses(owner, now_s)))
        return Stored(num_bytes=int(file_bytes) + others, num_files=int(num_files))


def _results(owner: str) -> Select[Any]:
    """Rows of batches that have not ended; then they are files."""
    running = (batches.c.owner == owner, batches.c.status.in_(_ACTIVE))
    outputs, errors = (select(column).where(*running) for column in (batches.c.output_id, batches.c.error_id))
    of_these = or_(parts.c.file_id.in_(outputs), parts.c.file_id.in_(errors))
    return select(_sum(func.length(parts.c.content))).where(of_these)


def _responses(owner: str, now_s: float) -> list[Select[Any]]:
    kept = (responses.c.owner == owner, responses.c.expires_at > now_s)
    ids = select(responses.c.id).where(*kept)
    items, events = response_items.c, response_events.c
    return [
        select(_sum(func.length(responses.c.response) + func.length(responses.c.written))).where(*kept),
        select(_sum(func.length(items.content))).where(items.response_id.in_(ids)),
        select(_sum(func.length(events.content))).where(events.response_id.in_(ids)),
    ]


def _sum(what: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(what), 0)


def _scalar(connection: Connection, query: Select[Any]) -> int:
    return int(connection.execute(query).scalar_one())
