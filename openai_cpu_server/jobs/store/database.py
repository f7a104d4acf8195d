"""Tables, on SQLite in WAL mode or PostgreSQL, with the same statements."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
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

SCHEMA_VERSION = 5
"""Grows with every change: 2 added responses, 3 usage, 4 conversations, 5 seconds of sound. Older
databases are migrated, newer ones rejected."""
OLDER = (1, 2, 3, 4)
_LACK_SECONDS = (3, 4)

metadata = sa.MetaData()

schema_version = sa.Table(
    "schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False)
)

files = sa.Table(
    "files",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),  # the order of creation, for listings
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("owner", sa.String(128), nullable=False),
    sa.Column("purpose", sa.String(32), nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
)

parts = sa.Table(
    "parts",
    metadata,
    sa.Column("file_id", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
"""Parts of a file, in the order of the numbers. Content lives in the database, so that it and its record
are one transaction, and servers on one PostgreSQL share files. An upload has parts of 256 KiB. An output
file has a part per row, numbered by the input's line, so it is complete and in order without copying."""

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("owner", sa.String(128), nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("endpoint", sa.String(64), nullable=False),
    sa.Column("input_file_id", sa.String(64), nullable=False),
    sa.Column("output_id", sa.String(64), nullable=False),
    sa.Column("error_id", sa.String(64), nullable=False),
    sa.Column("completion_window", sa.String(32), nullable=False),
    sa.Column("metadata", sa.JSON(none_as_null=True)),
    sa.Column("output_expires_s", sa.Integer),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("in_progress_at", sa.BigInteger),
    sa.Column("finalizing_at", sa.BigInteger),
    sa.Column("completed_at", sa.BigInteger),
    sa.Column("failed_at", sa.BigInteger),
    sa.Column("expired_at", sa.BigInteger),
    sa.Column("cancelling_at", sa.BigInteger),
    sa.Column("cancelled_at", sa.BigInteger),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("completed", sa.Integer, nullable=False),
    sa.Column("failed", sa.Integer, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("errors", sa.JSON(none_as_null=True)),
    sa.Column("lease_holder", sa.Text),  # who runs it now
    sa.Column("lease_until", sa.Float),
    sa.Index("batches_by_status", "status"),
)

results = sa.Table(
    "results",
    metadata,
    sa.Column("batch_id", sa.String(64), primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
)
"""Finished rows of running batches. The key prevents a second result of a row."""

responses = sa.Table(
    "responses",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("owner", sa.String(128), nullable=False),
    sa.Column("previous_id", sa.String(64)),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("is_background", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("response", sa.LargeBinary, nullable=False),  # the object as clients see it
    sa.Column("written", sa.LargeBinary, nullable=False),  # the tokens of its output
    sa.Column("vocabulary", sa.Text, nullable=False),  # the model whose tokens these are
    sa.Column("lease_holder", sa.Text),  # who runs it in the background
    sa.Column("lease_until", sa.Float),
    sa.Index("responses_by_expiry", "expires_at"),
)

response_items = sa.Table(
    "response_items",
    metadata,
    sa.Column("response_id", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.String(64), nullable=False),
    sa.Column("is_output", sa.Boolean, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index("response_items_by_id", "id"),
)

response_events = sa.Table(
    "response_events",
    metadata,
    sa.Column("response_id", sa.String(64), primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("owner", sa.String(128), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("metadata", sa.JSON, nullable=False),
    sa.Index("conversations_by_expiry", "expires_at"),
)

conversation_items = sa.Table(
    "conversation_items",
    metadata,
    sa.Column("conversation_id", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.String(64), nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("answer_id", sa.String(64)),  # the response that it came out of
    sa.Column(
        "written", sa.LargeBinary, nullable=False
    ),  # the tokens of that one's output, at its first item
    sa.Column("vocabulary", sa.Text, nullable=False),
    sa.Index("conversation_items_by_id", "id"),
)
"""Copies, because a conversation outlives responses."""

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),  # YYYY-MM-DD, in UTC
    sa.Column("owner", sa.String(128), primary_key=True),  # the key's name
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("cpu_ms", sa.Float(53), nullable=False),
    sa.Column("recalled_requests", sa.BigInteger, nullable=False),
    sa.Column("recalled_input_tokens", sa.BigInteger, nullable=False),
    sa.Column("recalled_output_tokens", sa.BigInteger, nullable=False),
    sa.Column("audio_seconds", sa.Float(53), nullable=False, server_default="0"),
)


_learning = threading.Lock()
_learned: set[type[msgspec.Struct]] = set()


def learned(kind: type[R]) -> type[R]:
    """Prepare a struct for threads. msgspec marks a struct as known before it has inspected it, and a
    second thread then crashes the process."""
    if kind not in _learned:
        with _learning:
            msgspec.json.Decoder(kind)
            _learned.add(kind)
    return kind


def record_of(kind: type[R], row: sa.RowMapping) -> R:
    kind = learned(kind)
    return msgspec.convert({name: row[name] for name in kind.__struct_fields__}, kind)


def storable(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store. Our own ids have none."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def storable_page(page: PageQuery) -> PageQuery:
    return page if page.after is None else msgspec.structs.replace(page, after=storable(page.after))


def page_of(
    connection: sa.Connection,
    kind: type[R],
    query: sa.Select[Any],
    number: sa.Column[int],
    page: PageQuery,
    last: sa.Select[Any],
) -> tuple[list[R], bool] | None:
    """Return a page in the order of `number`, and True if there are more; or None if `page.after` is
    unknown, whose number `last` selects."""
    if page.after is not None:
        after = connection.execute(last).scalar()
        if after is None:
            return None
        query = query.where(number > after if page.is_ascending else number < after)
    query = query.order_by(number if page.is_ascending else number.desc()).limit(page.limit + 1)
    found = [record_of(kind, row) for row in connection.execute(query).mappings()]
    return found[: page.limit], len(found) > page.limit


_SQLITE = SqliteOptions(lock_timeout_s=30, synchronous="FULL")
"""NORMAL survives kill -9 too, but a power loss may undo commits that clients know of. A sync per commit
is cheap beside a row of 100 ms, and rows that end together share one."""
_POSTGRES = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""Detect a vanished host, unless the URL says otherwise."""
_UNAVAILABLE = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""No connection, a full disk, a read-only replica. Other errors are our bugs."""


def open_database(where: str) -> Database:
    """Open a URL or a path. Raises StartupError; later uses raise JobsUnavailable while the database is
    away."""
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
    """Return why the database cannot be used, or None for another error."""
    return error.reason if isinstance(error, JobsUnavailable) else None


def _named(error: SQLAlchemyError) -> JobsUnavailable | None:
    return JobsUnavailable(_reason(error)) if isinstance(error, _UNAVAILABLE) else None


def _url(where: str) -> sa.URL:
    if "://" not in where:
        return sa.URL.create("sqlite", database=str(expanded(where)))
    try:
        url = sa.make_url(where)
    except ArgumentError:
        raise StartupError("--jobs-db is neither a path nor a database URL") from None
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StartupError(f"--jobs-db: {url.get_backend_name()} is not supported, sqlite and postgresql are")
    return url


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        return sqlite_engine(url, _SQLITE)
    own = {name: value for name, value in _POSTGRES.items() if name not in url.query}
    return sa.create_engine(url, pool_pre_ping=True, connect_args=own)


def _prepare(engine: sa.Engine) -> None:
    try:
        _create(engine)
    except (IntegrityError, ProgrammingError):  # another server was creating them just now
        _create(engine)
    with engine.begin() as connection:
        found = connection.execute(sa.select(schema_version.c.version)).scalars().all()
        if len(found) == 1 and found[0] in OLDER:
            _bring_forward(connection, found[0])
            found = [SCHEMA_VERSION]
    if found != [SCHEMA_VERSION]:
        versions = ", ".join(map(str, found))
        raise StartupError(f"the jobs database is of version {versions}, this program needs {SCHEMA_VERSION}")


def _bring_forward(connection: sa.Connection, version: int) -> None:
    this = schema_version.c.version == version
    moved = connection.execute(sa.update(schema_version).where(this).values(version=SCHEMA_VERSION))
    if moved.rowcount and version in _LACK_SECONDS:
        added = "audio_seconds FLOAT DEFAULT 0 NOT NULL"
        connection.execute(sa.text(f"ALTER TABLE usage ADD COLUMN {added}"))


def _create(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        metadata.create_all(connection)
        if connection.execute(sa.select(schema_version)).first() is None:
            connection.execute(sa.insert(schema_version).values(version=SCHEMA_VERSION))


def _reason(error: Exception) -> str:
    return " ".join(str(cause_of(error)).split())
