"""Answers in SQLite, with one thread: in memory, or in a file that survives restarts and that servers of one
machine may share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from openai_cpu_server.answers import store
from openai_cpu_server.errors import StartupError
from openai_cpu_server.storage.database import (
    Database,
    DatabaseThreads,
    SqliteOptions,
    cause_of,
    sqlite_engine,
)

P = ParamSpec("P")
T = TypeVar("T")

_OURS = 0x6F637361
"""SQLite's `application_id` of these files."""
_VERSION = 1

_metadata = sa.MetaData()
_answers = sa.Table(
    "answers",
    _metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("grp", sa.Text),
    sa.Column("vector", sa.LargeBinary),
    sa.Column("answer", sa.LargeBinary, nullable=False),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("expires_at", sa.REAL, nullable=False),
    sa.Column("used_at", sa.REAL, nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("by_group", _answers.c.grp, _answers.c.used_at, sqlite_where=_answers.c.grp.is_not(None))
sa.Index("by_use", _answers.c.used_at, _answers.c.bytes)
sa.Index("by_expiry", _answers.c.expires_at)
_totals = sa.Table(
    "totals",
    _metadata,
    sa.Column("entries", sa.Integer, nullable=False),
    sa.Column("bytes", sa.Integer, nullable=False),
)
_TRIGGERS = (
    """CREATE TRIGGER came AFTER INSERT ON answers BEGIN
        UPDATE totals SET entries = entries + 1, bytes = bytes + new.bytes;
    END""",
    """CREATE TRIGGER went AFTER DELETE ON answers BEGIN
        UPDATE totals SET entries = entries - 1, bytes = bytes - old.bytes;
    END""",
)


def _in_thread(
    work: Callable[Concatenate[SqliteAnswers, P], T],
) -> Callable[Concatenate[SqliteAnswers, P], Coroutine[Any, Any, T]]:
    @wraps(work)
    async def method(self: SqliteAnswers, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._threads.write(work, self, *args, **kwargs)
        except RuntimeError as error:  # it is closed
            raise store.StoreFailed(type(error).__name__) from error

    return method


class SqliteAnswers:
    """A power loss may lose the last answers; kill -9 loses none."""

    def __init__(
        self, database: Database, bounds: store.StoreBounds, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._bounds = bounds
        self._clock = clock
        self._threads = DatabaseThreads(database, "answers")

    @classmethod
    def open(
        cls, path: Path | None, bounds: store.StoreBounds, clock: Callable[[], float] = time.time
    ) -> SqliteAnswers:
        """Open the file, or a database in memory for None. Raises StartupError, also for another program's
        file."""
        options = SqliteOptions(
            lock_timeout_s=5, synchronous="NORMAL", has_one_connection=True, check=partial(_check_ours, path)
        )
        url = sa.URL.create("sqlite", database=None if path is None else str(path))
        try:
            engine = sqlite_engine(url, options)
            try:
                with engine.begin() as connection:
                    _prepare(connection)
            except BaseException:
                engine.dispose()
                raise
        except (SQLAlchemyError, OSError) as error:
            raise StartupError(f"cannot open the cache of answers {path}: {cause_of(error)}") from None
        database = Database(engine, lambda error: store.StoreFailed(type(cause_of(error)).__name__))
        return cls(database, bounds, clock)

    @_in_thread
    def get(self, key: str) -> bytes | None:
        now_s = self._clock()
        which = sa.select(_answers.c.answer).where(_answers.c.key == key, _answers.c.expires_at > now_s)
        with self._database.read() as connection:
            answer: bytes | None = connection.execute(which).scalar()
        if answer is not None:
            with self._database.write() as connection:
                connection.execute(sa.update(_answers).where(_answers.c.key == key).values(used_at=now_s))
        return answer

    @_in_thread
    def near(self, group: str, vector: bytes, *, at_least: float) -> Sequence[store.SimilarTurn]:
        turns = (
            sa.select(_answers.c.key, _answers.c.vector)
            .where(_answers.c.grp == group, _answers.c.expires_at > self._clock())
            .order_by(_answers.c.used_at.desc())
            .limit(store.GROUP_LIMIT)
        )
        with self._database.read() as connection:
            rows = [(str(key), bytes(row)) for key, row in connection.execute(turns)]
        return store.nearest_turns(rows, vector, at_least=at_least)

    @_in_thread
    def put(self, entry: store.AnswerEntry) -> store.StoreSize:
        now_s = self._clock()
        row = {
            "key": entry.key,
            "grp": entry.group,
            "vector": entry.vector,
            "answer": entry.answer,
            "bytes": entry.num_bytes,
            "expires_at": now_s + self._bounds.ttl_s,
            "used_at": now_s,
        }
        gone = sa.or_(_answers.c.key == entry.key, _answers.c.expires_at <= now_s)
        oldest = sa.select(_answers.c.key).order_by(_answers.c.used_at).limit(1).scalar_subquery()
        with self._database.write() as connection:
            connection.execute(sa.delete(_answers).where(gone))
            connection.execute(sa.insert(_answers).values(row))
            while (size := _size(connection)).num_bytes > self._bounds.max_bytes and size.entries:
                connection.execute(sa.delete(_answers).where(_answers.c.key == oldest))
            return size

    @_in_thread
    def forget(self, key: str, group: str | None) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(_answers).where(_answers.c.key == key))

    @_in_thread
    def clear(self) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(_answers))

    @_in_thread
    def size(self) -> store.StoreSize:
        with self._database.read() as connection:
            return _size(connection)

    async def close(self) -> None:
        await self._close()
        await self._threads.close()

    @_in_thread
    def _close(self) -> None:
        self._database.close()


def _size(connection: sa.Connection) -> store.StoreSize:
    entries, num_bytes = connection.execute(sa.select(_totals.c.entries, _totals.c.bytes)).one()
    return store.StoreSize(int(entries), int(num_bytes))


def _check_ours(path: Path | None, connection: sqlite3.Connection) -> None:
    is_empty = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    if not is_empty and connection.execute("PRAGMA application_id").fetchone() != (_OURS,):
        raise StartupError(f"--answer-cache: {path} is a database of another program")


def _prepare(connection: sa.Connection) -> None:
    """Empty a file of another version, because it is only a cache."""
    if connection.exec_driver_sql("PRAGMA user_version").scalar() == _VERSION:
        return
    _metadata.drop_all(connection)
    _metadata.create_all(connection)
    connection.execute(sa.insert(_totals).values(entries=0, bytes=0))
    for trigger in _TRIGGERS:
        connection.exec_driver_sql(trigger)
    connection.exec_driver_sql(f"PRAGMA application_id = {_OURS}")
    connection.exec_driver_sql(f"PRAGMA user_version = {_VERSION}")
