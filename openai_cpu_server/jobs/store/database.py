"""The database of jobs: its tables, and how it is opened: SQLite in WAL mode, or PostgreSQL, with the same
statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    Select,
    String,
    Table,
    Text,
    create_engine,
    insert,
    make_url,
    select,
    update,
)
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

from openai_cpu_server.config.folders import expanded
from openai_cpu_server.errors import JobsUnavailable, StartupError
from openai_cpu_server.jobs.records import PageQuery
from openai_cpu_server.storage.database import Database, SqliteOptions, cause_of, sqlite_engine

R = TypeVar("R", bound=msgspec.Struct)

SCHEMA_VERSION = 3
"""The version of the tables. It grows with every change.

`database` brings older databases forward and refuses newer ones. Version 2 added the tables of responses,
version 3 that of what keys use.
"""
ONLY_LACK_TABLES = (1, 2)
"""Older versions that become this one when the tables are created that they lack."""

metadata = MetaData()

schema_version = Table(
    "schema_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False)
)

files = Table(
    "files",
    metadata,
    Column("number", Integer, primary_key=True),  # the order of creation, for listings
    Column("id", String(64), nullable=False, unique=True),
    Column("owner", String(128), nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("filename", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
)

parts = Table(
    "parts",
    metadata,
    Column("file_id", String(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)
"""A file's content is the concatenation of its parts, in the order of their numbers.

Content lives in the database, not in a directory: then a file and its record, a row's result and its count
are one transaction, and two servers on one PostgreSQL see the same files. An upload has parts of 256 KiB;
an output file has one part per row, numbered by the input's line, written while the batch runs: when the
last row is committed the file is complete and in order, and nothing is copied.
"""

batches = Table(
    "batches",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("owner", String(128), nullable=False),
    Column("model", Text, nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("input_file_id", String(64), nullable=False),
    Column("output_id", String(64), nullable=False),
    Column("error_id", String(64), nullable=False),
    Column("completion_window", String(32), nullable=False),
    Column("metadata", JSON(none_as_null=True)),
    Column("output_expires_s", Integer),
    Column("status", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("in_progress_at", BigInteger),
    Column("finalizing_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("expired_at", BigInteger),
    Column("cancelling_at", BigInteger),
    Column("cancelled_at", BigInteger),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("errors", JSON(none_as_null=True)),
    Column("lease_holder", Text),  # who runs it now
    Column("lease_until", Float),
    Index("batches_by_status", "status"),
)

results = Table(
    "results",
    metadata,
    Column("batch_id", String(64), primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
)
"""The rows of running batches that have ended. The key makes a second result of a row impossible."""

responses = Table(
    "responses",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("owner", String(128), nullable=False),
    Column("previous_id", String(64)),
    Column("status", String(16), nullable=False),
    Column("is_background", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("response", LargeBinary, nullable=False),  # the object as clients see it
    Column("written", LargeBinary, nullable=False),  # the tokens of its output
    Column("vocabulary", Text, nullable=False),  # the model whose tokens these are
    Column("lease_holder", Text),  # who runs it in the background
    Column("lease_until", Float),
    Index("responses_by_expiry", "expires_at"),
)

response_items = Table(
    "response_items",
    metadata,
    Column("response_id", String(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("id", String(64), nullable=False),
    Column("is_output", Boolean, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Index("response_items_by_id", "id"),
)
"""What went into a response, and what came out of it, but not what it got from earlier responses."""

response_events = Table(
    "response_events",
    metadata,
    Column("response_id", String(64), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)
"""The stream of a background response that has ended, for clients that come back to it."""

usage = Table(
    "usage",
    metadata,
    Column("day", String(10), primary_key=True),  # YYYY-MM-DD, in UTC
    Column("owner", String(128), primary_key=True),  # the key's name
    Column("model", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cpu_ms", Float(53), nullable=False),
    Column("recalled_requests", BigInteger, nullable=False),
    Column("recalled_input_tokens", BigInteger, nullable=False),
    Column("recalled_output_tokens", BigInteger, nullable=False),
)
"""The fields of `Amounts`, added up by all servers."""


def record_of(kind: type[R], row: RowMapping) -> R:
    """The columns of its fields' names."""
    return msgspec.convert({name: row[name] for name in kind.__struct_fields__}, kind)


class RowPage(NamedTuple):
    rows: Sequence[RowMapping]
    has_more: bool


def rows_of(
    connection: Connection, query: Select[Any], number: Column[int], page: PageQuery, last: Select[Any]
) -> RowPage | None:
    """One page of a query, in the order of this column. `last`: the number of the row with `page.after`.

    None: there is no such row.
    """
    if page.after is not None:
        after = connection.execute(last).scalar()
        if after is None:
            return None
        query = query.where(number > after if page.is_ascending else number < after)
    query = query.order_by(number if page.is_ascending else number.desc()).limit(page.limit + 1)
    found = connection.execute(query).mappings().all()
    return RowPage(found[: page.limit], len(found) > page.limit)


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
