"""Opens the database: SQLite in WAL mode, or PostgreSQL, with the same statements.

SQLite runs with synchronous=FULL. NORMAL would survive kill -9 as well (what is written to the WAL stays when
the process dies), but after a power loss it may forget the last commits, and with them files and batches that
a client knows of. A sync per commit is cheap beside a row that takes 100 ms and more, and rows that end
together share one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, make_url, select, update
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, Pool, QueuePool, StaticPool

from openai_cpu_server.errors import JobsUnavailable, StartupError
from openai_cpu_server.jobs.store.tables import (
    ONLY_LACK_TABLES,
    SCHEMA_VERSION,
    metadata,
    schema_version,
)
from openai_cpu_server.private_files import keep_database_private
from openai_cpu_server.user_folders import expanded

_LOCK_TIMEOUT_S = 30
"""The seconds that a transaction waits for one of another process."""
_POSTGRES = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""libpq's settings unless the URL says otherwise: they notice a host that has vanished."""
_READS = "openai_cpu_server_reads"


class Database:
    """The database; one thread writes to it. Every use raises JobsUnavailable while it cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
        with _named_failures(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with _named_failures(), self._engine.connect() as connection:
            yield connection.execution_options(**{_READS: True})

    @property
    def reads_beside_writes(self) -> bool:
        """Whether other threads may read meanwhile. A database in memory has one connection for all."""
        return not isinstance(self._engine.pool, StaticPool)

    def close(self) -> None:
        self._engine.dispose()


@contextmanager
def _named_failures() -> Iterator[None]:
    """Turn the database's own failures into JobsUnavailable:
    no connection, a full disk, a read-only replica."""
    try:
        yield
    except (OperationalError, InterfaceError, InternalError, PoolTimeout) as error:
        raise JobsUnavailable(_reason(error)) from error


def open_database(where: str) -> Database:
    """Open a database. `where` is a URL, or the path of a SQLite file. Raises StartupError with one line."""
    url = _url(where)
    shown = url.render_as_string(hide_password=True)
    try:
        engine = _engine(url)
        _prepare(engine)
    except ImportError as error:
        extra = "pip install 'openai-cpu-server[postgres]'"
        raise StartupError(f"cannot use {shown}: {error} ({extra})") from None
    except (SQLAlchemyError, OSError) as error:
        raise StartupError(f"cannot open the jobs database {shown}: {_reason(error)}") from None
    return Database(engine)


def _url(where: str) -> URL:
    if "://" not in where:
        return URL.create("sqlite", database=str(expanded(where)))
    try:
        url = make_url(where)
    except ArgumentError:
        raise StartupError("--jobs-db is neither a path nor a database URL") from None
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StartupError(f"--jobs-db: {url.get_backend_name()} is not supported, sqlite and postgresql are")
    return url


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        own = {name: value for name, value in _POSTGRES.items() if name not in url.query}
        return create_engine(url, pool_pre_ping=True, connect_args=own)
    if not _is_in_memory(url):
        _keep_private(_file(url))
    engine = create_engine(
        url, connect_args={"timeout": _LOCK_TIMEOUT_S, "check_same_thread": False}, poolclass=_pool(url)
    )
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _keep_private(path: Path) -> None:
    """It has everybody's prompts, files and responses. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    keep_database_private(path)


def _file(url: URL) -> Path:
    """The database may be named as SQLite's own URI, too: `sqlite:///file:PATH?uri=true`."""
    name = url.database or ""
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") and "uri" in url.query else name)


def _is_in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:", "file::memory:") or url.query.get("mode") == "memory"


def _pool(url: URL) -> type[Pool]:
    """The class of the pool. A database in memory exists in one connection only, so it gets one."""
    return StaticPool if _is_in_memory(url) else QueuePool


def _set_up_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """Replace the driver's BEGIN, which takes the write lock too late."""
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    """Lock at the start of a transaction that will write: what it read cannot change before it writes."""
    is_reading = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")


def _prepare(engine: Engine) -> None:
    """Create the tables, or check that existing ones are ours."""
    try:
        _create(engine)
    except (IntegrityError, ProgrammingError):  # another server was creating them just now
        _create(engine)
    with engine.begin() as connection:
        found = connection.execute(select(schema_version.c.version)).scalars().all()
        if len(found) == 1 and found[0] in ONLY_LACK_TABLES:  # they were created just now
            connection.execute(update(schema_version).values(version=SCHEMA_VERSION))
            found = [SCHEMA_VERSION]
    if found != [SCHEMA_VERSION]:
        versions = ", ".join(map(str, found))
        raise StartupError(f"the jobs database is of version {versions}, this program needs {SCHEMA_VERSION}")


def _create(engine: Engine) -> None:
    with engine.begin() as connection:
        metadata.create_all(connection)
        if connection.execute(select(schema_version)).first() is None:
            connection.execute(insert(schema_version).values(version=SCHEMA_VERSION))


def _reason(error: Exception) -> str:
    """The error's cause on one line."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split())
