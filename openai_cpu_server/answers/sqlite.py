"""Answers in SQLite: a file that restarts find again, and that several servers of one machine may share; or
in memory. One thread talks to it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from openai_cpu_server.answers.similarity import Near, nearest
from openai_cpu_server.answers.store import GROUP_LIMIT, Bounds, Entry, Size, StoreFailed
from openai_cpu_server.errors import StartupError
from openai_cpu_server.private_files import keep_database_private

T = TypeVar("T")

_OURS = 0x6F637361
"""SQLite's `application_id` of our files."""
_VERSION = 1
_LOCK_TIMEOUT_S = 5.0
_FEW = 8
"""So many similar turns are told of at most."""
_TABLES = """
CREATE TABLE answers (
    key TEXT PRIMARY KEY,
    grp TEXT,
    vector BLOB,
    answer BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    expires_at REAL NOT NULL,
    used_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_group ON answers (grp, used_at) WHERE grp IS NOT NULL;
CREATE INDEX by_use ON answers (used_at, bytes);
CREATE INDEX by_expiry ON answers (expires_at);
CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER came AFTER INSERT ON answers BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER went AFTER DELETE ON answers BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - old.bytes;
END;
"""


class SqliteAnswers:
    """An `AnswerStore`. A power loss may forget its last answers, but kill -9 forgets none."""

    def __init__(
        self, connection: sqlite3.Connection, bounds: Bounds, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._connection = connection
        self._bounds = bounds
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")

    @classmethod
    def open(
        cls, path: Path | None, bounds: Bounds, *, clock: Callable[[], float] = time.time
    ) -> SqliteAnswers:
        """None: in memory. Raises StartupError for a file that cannot be used, or that is none of ours."""
        try:
            if path is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                keep_database_private(path)
            connection = _connected(path)
        except (sqlite3.Error, OSError) as error:
            raise StartupError(f"cannot open the cache of answers {path}: {error}") from None
        return cls(connection, bounds, clock=clock)

    async def get(self, key: str) -> bytes | None:
        return await self._do(lambda: self._get(key))

    async def near(self, group: str, vector: bytes, *, at_least: float) -> Sequence[Near]:
        return await self._do(lambda: nearest(self._turns(group), vector, at_least=at_least)[:_FEW])

    async def put(self, entry: Entry) -> Size:
        return await self._do(lambda: self._put(entry))

    async def forget(self, key: str, group: str | None) -> None:
        await self._do(lambda: self._execute("DELETE FROM answers WHERE key = ?", key))

    async def clear(self) -> None:
        await self._do(lambda: self._execute("DELETE FROM answers"))

    async def size(self) -> Size:
        return await self._do(self._size)

    async def close(self) -> None:
        await self._do(self._connection.close)
        self._thread.shutdown(wait=False)

    # -- in the thread ------------------------------------------------------------------------------------

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, RuntimeError) as error:  # the latter: it is closed
            raise StoreFailed(type(error).__name__) from error

    def _execute(self, sql: str, *values: object) -> None:
        self._connection.execute(sql, values).close()

    def _get(self, key: str) -> bytes | None:
        now = self._clock()
        sql = "SELECT answer FROM answers WHERE key = ? AND expires_at > ?"
        row = self._connection.execute(sql, (key, now)).fetchone()
        if row is None:
            return None
        self._execute("UPDATE answers SET used_at = ? WHERE key = ?", now, key)
        return bytes(row[0])

    def _turns(self, group: str) -> list[tuple[str, bytes]]:
        sql = "SELECT key, vector FROM answers WHERE grp = ? AND expires_at > ? ORDER BY used_at DESC LIMIT ?"
        rows = self._connection.execute(sql, (group, self._clock(), GROUP_LIMIT)).fetchall()
        return [(str(key), bytes(vector)) for key, vector in rows]

    def _put(self, entry: Entry) -> Size:
        now = self._clock()
        row = (entry.key, entry.group, entry.vector, entry.answer, entry.num_bytes)
        with self._transaction():
            self._execute("DELETE FROM answers WHERE key = ? OR expires_at <= ?", entry.key, now)
            sql = "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)"
            self._execute(sql, *row, now + self._bounds.ttl_s, now)
            while (size := self._size()).num_bytes > self._bounds.max_bytes and size.entries:
                oldest = "SELECT key FROM answers ORDER BY used_at LIMIT 1"
                self._execute(f"DELETE FROM answers WHERE key = ({oldest})")
        return size

    def _size(self) -> Size:
        entries, num_bytes = self._connection.execute("SELECT entries, bytes FROM totals").fetchone()
        return Size(int(entries), int(num_bytes))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()


def _connected(path: Path | None) -> sqlite3.Connection:
    """With the tables in it. Raises sqlite3.Error, StartupError."""
    connection = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=_LOCK_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    """The file of another program is left alone; one of another version of this one is only a cache."""
    _check_ours(connection, path)
    connection.execute("PRAGMA journal_mode=WAL").close()
    connection.execute("PRAGMA synchronous=NORMAL").close()
    connection.execute("BEGIN IMMEDIATE").close()
    if _pragma(connection, "user_version") != _VERSION:
        for statement in ("DROP TABLE IF EXISTS answers", "DROP TABLE IF EXISTS totals"):
            connection.execute(statement).close()
        for statement in _statements(_TABLES):
            connection.execute(statement).close()
        connection.execute(f"PRAGMA application_id = {_OURS}").close()
        connection.execute(f"PRAGMA user_version = {_VERSION}").close()
    connection.commit()


def _check_ours(connection: sqlite3.Connection, path: Path | None) -> None:
    """Raises StartupError."""
    is_empty = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    if not is_empty and _pragma(connection, "application_id") != _OURS:
        raise StartupError(f"--answer-cache: {path} is a database of something else")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """`executescript` would end the transaction."""
    statement = ""
    for line in script.strip().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
