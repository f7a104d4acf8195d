"""A database behind SQLAlchemy: how SQLite is opened, transactions whose failures their owner names, and the
threads that talk to it: an event loop never waits for a disk."""

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
"""A long conversation that is read keeps one of them busy, and nobody else waits."""
_READS = "openai_cpu_server_reads"


class SqliteOptions(NamedTuple):
    lock_timeout_s: float
    """What a transaction waits for one of another process."""
    synchronous: str
    """FULL: a power loss takes nothing that is committed. NORMAL: it may take the last commits, but kill -9
    takes none."""
    has_one_connection: bool = False
    """Then reads wait for writes, and one thread does both."""
    check: Callable[[sqlite3.Connection], None] = lambda _: None
    """Sees the file before anything is changed in it."""


class Database:
    """One thread writes to it."""

    def __init__(self, engine: Engine, named: Callable[[SQLAlchemyError], Exception | None]) -> None:
        """`named`: what is raised for a failure of the database; None: what SQLAlchemy raises."""
        self._engine = engine
        self._named = named

    @property
    def folder(self) -> Path | None:
        """Where its file lies; None: it has none, or is elsewhere."""
        url = self._engine.url
        if url.get_backend_name() != "sqlite" or _is_in_memory(url):
            return None
        return Path(url.database or "").absolute().parent

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back by an exception."""
        with self._named_failures(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._named_failures(), self._engine.connect() as connection:
            yield connection.execution_options(**{_READS: True})

    @property
    def reads_beside_writes(self) -> bool:
        """Whether other threads may read meanwhile."""
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
    """One thread writes, some read without waiting for it.

    `name`: that of the threads. They raise RuntimeError once they are closed.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._readers = (
            ThreadPoolExecutor(_READERS, thread_name_prefix=f"{name}-read")
            if database.reads_beside_writes
            else self._writer
        )

    async def write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that writes, in the order of the calls.
        Work that has begun ends even if its caller is cancelled."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, partial(work, *args, **kwargs))

    async def read(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that only reads. It sees what is committed."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, partial(work, *args, **kwargs))

    async def close(self) -> None:
        """Wait until all work that has begun is done."""
        for executor in (self._writer, self._readers):
            await asyncio.to_thread(executor.shutdown)


def sqlite_engine(url: URL, options: SqliteOptions) -> Engine:
    """SQLite in WAL mode, in a file that is this user's alone. Raises OSError; whoever uses it first gets
    what `check` raises."""
    if not _is_in_memory(url):
        path = _file(url)
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
    """What the driver has raised, where it has."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _file(url: URL) -> Path:
    """The database may be named as SQLite's own URI, too: `sqlite:///file:PATH?uri=true`."""
    name = url.database or ""
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") and "uri" in url.query else name)


def _is_in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:", "file::memory:") or url.query.get("mode") == "memory"


def _set_up_sqlite(options: SqliteOptions, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """Replace the driver's BEGIN, which takes the write lock too late."""
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
    """Lock at the start of a transaction that will write: what it read cannot change before it writes."""
    is_reading = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")
