"""Databases behind SQLAlchemy, and the threads that keep disk waits off the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from openai_cpu_server.storage.private_files import keep_database_private

P = ParamSpec("P")
T = TypeVar("T")

_READERS = 3
"""Long conversations keep one of them busy."""
_READS = "openai_cpu_server_reads"


class SqliteOptions(NamedTuple):
    lock_timeout_s: float
    synchronous: str
    """FULL: a power loss loses no commit. NORMAL: it may lose the last ones, kill -9 none."""
    has_one_connection: bool = False
    check: Callable[[sqlite3.Connection], None] = lambda _: None
    """Called before the file is changed."""


class Database:
    def __init__(self, engine: Engine, named: Callable[[SQLAlchemyError], Exception | None]) -> None:
        """`named`: translates a failure of the database; None raises SQLAlchemy's own."""
        self._engine = engine
        self._named = named

    @property
    def folder(self) -> Path | None:
        """Folder, or None in memory or on a server."""
        url = self._engine.url
        if url.get_backend_name() != "sqlite" or _is_in_memory(url):
            return None
        return Path(url.database or "").absolute().parent

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._named_failures(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._named_failures(), self._engine.connect() as connection:
            yield connection.execution_options(**{_READS: True})

    @property
    def reads_beside_writes(self) -> bool:
        return not isinstance(self._engine.pool, StaticPool)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            named = self._named(error)
            if named is None:
                raise
            raise named from error


class DatabaseThreads:
    """Writing thread, and readers that do not wait for it. Methods raise RuntimeError after `close`."""

    def __init__(self, database: Database, name: str) -> None:
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._readers = (
            ThreadPoolExecutor(_READERS, thread_name_prefix=f"{name}-read")
            if database.reads_beside_writes
            else self._writer
        )

    async def write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Keep the order. A running call completes even if its caller is cancelled."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, partial(work, *args, **kwargs))

    async def read(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, partial(work, *args, **kwargs))

    async def close(self) -> None:
        for executor in (self._writer, self._readers):
            await asyncio.to_thread(executor.shutdown)


def sqlite_engine(url: URL, options: SqliteOptions) -> Engine:
    """Return an engine in WAL mode, in a private file. Raises OSError; the first use raises what `check`
    raises."""
    if not _is_in_memory(url):
        name = url.database or ""
        if name.startswith("file:") and "uri" in url.query:
            name = unquote(urlsplit(name).path)
        path = Path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_database_private(path)
    has_one = options.has_one_connection or _is_in_memory(url)  # in memory, another would be another database
    engine = create_engine(
        url,
        connect_args={"timeout": options.lock_timeout_s, "check_same_thread": False},
        poolclass=StaticPool if has_one else QueuePool,
    )
    event.listen(engine, "connect", partial(_set_up_sqlite, options))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def cause_of(error: Exception) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _is_in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:", "file::memory:") or url.query.get("mode") == "memory"


def _set_up_sqlite(options: SqliteOptions, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """Disable the driver's own BEGIN, which takes the write lock too late."""
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None
    try:
        options.check(connection)
        for pragma in ("journal_mode=WAL", f"synchronous={options.synchronous}"):
            connection.execute(f"PRAGMA {pragma}").close()
    except BaseException:
        connection.close()
        raise


def _begin_sqlite(connection: Connection) -> None:
    """An early write lock keeps what a transaction reads from changing before it writes."""
    is_reading = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")
