"""Opens the database of jobs: SQLite in WAL mode, or PostgreSQL, with the same statements."""

from __future__ import annotations

from sqlalchemy import URL, Engine, create_engine, insert, make_url, select, update
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from openai_cpu_server.errors import JobsUnavailable, StartupError
from openai_cpu_server.jobs.store.tables import (
    ONLY_LACK_TABLES,
    SCHEMA_VERSION,
    metadata,
    schema_version,
)
from openai_cpu_server.storage.database import Database, SqliteOptions, cause_of, sqlite_engine
from openai_cpu_server.user_folders import expanded

_SQLITE = SqliteOptions(lock_timeout_s=30, synchronous="FULL")
"""NORMAL would survive kill -9 as well (what is written to the WAL stays when the process dies), but after a
power loss it may forget the last commits, and with them files and batches that a client knows of. A sync per
commit is cheap beside a row that takes 100 ms and more, and rows that end together share one."""
_POSTGRES = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""libpq's settings unless the URL says otherwise: they notice a host that has vanished."""
_UNAVAILABLE = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""No connection, a full disk, a read-only replica. The rest are mistakes of ours."""


def open_database(where: str) -> Database:
    """`where` is a URL, or the path of a SQLite file. Raises StartupError with one line.

    Every use of it raises JobsUnavailable while the database cannot be reached.
    """
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
    return Database(engine, _named)


def away(error: Exception) -> str | None:
    """Why the database cannot be used, in one line; None: it is not to blame."""
    return error.reason if isinstance(error, JobsUnavailable) else None


def _named(error: SQLAlchemyError) -> JobsUnavailable | None:
    return JobsUnavailable(_reason(error)) if isinstance(error, _UNAVAILABLE) else None


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
    if url.get_backend_name() == "sqlite":
        return sqlite_engine(url, _SQLITE)
    own = {name: value for name, value in _POSTGRES.items() if name not in url.query}
    return create_engine(url, pool_pre_ping=True, connect_args=own)


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
    return " ".join(str(cause_of(error)).split())
