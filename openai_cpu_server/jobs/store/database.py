"""Tables of SQLite and PostgreSQL, with the same statements."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from types import NoneType, UnionType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, Union, get_args, get_origin

import msgspec
import sqlalchemy as sa
from sqlalchemy import ColumnElement
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

from openai_cpu_server.config.folders import expanded_path
from openai_cpu_server.contract.figures import Amounts
from openai_cpu_server.errors import JobObjectNotFound, JobsUnavailable, MissingExtra, StartupError
from openai_cpu_server.jobs import records
from openai_cpu_server.storage.database import (
    Database,
    DatabaseThreads,
    SqliteOptions,
    cause_of,
    sqlite_engine,
)

R = TypeVar("R", bound=msgspec.Struct)
P = ParamSpec("P")
T = TypeVar("T")

SCHEMA_VERSION = 5
"""Grows with every change: 2 added responses, 3 usage, 4 conversations, 5 seconds of sound. Older databases
are migrated, newer ones rejected."""
OLDER = (1, 2, 3, 4)
_LACK_SECONDS = (3, 4)

metadata = sa.MetaData()

schema_version = sa.Table(
    "schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False)
)

_SQL_TYPES: Mapping[object, type[sa.types.TypeEngine[Any]]] = {
    str: sa.Text,
    int: sa.BigInteger,
    float: sa.Float,
    bool: sa.Boolean,
    bytes: sa.LargeBinary,
}


def _table(name: str, record: type[msgspec.Struct], *indices: sa.Index) -> sa.Table:
    """Return a table with a column for each field, numbered by creation."""
    number = sa.Column("number", sa.Integer, primary_key=True)
    return sa.Table(name, metadata, number, *_columns(record), sa.UniqueConstraint("id"), *indices)


def _numbered(parent: str) -> tuple[sa.Column[str], sa.Column[int]]:
    number = sa.Column("number", sa.Integer, primary_key=True, autoincrement=False)
    return sa.Column(parent, sa.Text, primary_key=True), number


def _columns(record: type[msgspec.Struct]) -> Iterator[sa.Column[Any]]:
    for field in msgspec.structs.fields(record):
        is_union = get_origin(field.type) in (Union, UnionType)
        kinds = get_args(field.type) if is_union else (field.type,)
        (kind,) = (kind for kind in kinds if kind is not NoneType)
        sql_type: Any = _SQL_TYPES.get(kind)
        if sql_type is None:
            sql_type = sa.JSON(none_as_null=True) if get_origin(kind) else sa.String(32)  # an enum's value
        yield sa.Column(field.name, sql_type, nullable=NoneType in kinds)


files = _table("files", records.FileRecord)
parts = sa.Table(
    "parts", metadata, *_numbered("file_id"), sa.Column("content", sa.LargeBinary, nullable=False)
)
"""Content lives in the database, so that it and its record are one transaction. Uploads have parts of 256
KiB, an output file one per row, numbered by the input's line and so in order."""
batches = _table("batches", records.BatchRecord, sa.Index("batches_by_status", "status"))
results = sa.Table(
    "results",
    metadata,
    sa.Column("batch_id", sa.Text, primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
)
"""Finished rows of running batches. The key prevents a second result of a row."""
responses = _table("responses", records.ResponseRecord, sa.Index("responses_by_expiry", "expires_at"))
response_items = sa.Table(
    "response_items",
    metadata,
    *_numbered("response_id"),
    *_columns(records.ItemRecord),
    sa.Index("response_items_by_id", "id"),
)
response_events = sa.Table(
    "response_events",
    metadata,
    sa.Column("response_id", sa.Text, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
conversations = _table(
    "conversations", records.ConversationRecord, sa.Index("conversations_by_expiry", "expires_at")
)
conversation_items = sa.Table(
    "conversation_items",
    metadata,
    *_numbered("conversation_id"),
    *_columns(records.ConversationItem),
    sa.Index("conversation_items_by_id", "id"),
)
"""Copies, because a conversation outlives responses."""
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),  # YYYY-MM-DD, in UTC
    sa.Column("owner", sa.Text, primary_key=True),  # the key's name
    sa.Column("model", sa.Text, primary_key=True),
    *_columns(Amounts),
)

_learning = threading.Lock()
_learned: set[type[msgspec.Struct]] = set()


def learned(kind: type[R]) -> type[R]:
    """Prepare a struct for threads: msgspec marks it as known before it has inspected it, and a second thread
    then crashes the process."""
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


@dataclass(eq=False)
class Repository:
    """Public methods are one transaction each, in a thread, and raise JobsUnavailable while the database is
    away."""

    database: Database
    threads: DatabaseThreads
    clock: Callable[[], float] = time.time

    @property
    def now_s(self) -> int:
        return int(self.clock())

    async def _read(self, work: Callable[[sa.Connection], T]) -> T:
        return await self.threads.read(_transaction, self.database.read, work)

    async def _write(self, work: Callable[[sa.Connection], T]) -> T:
        return await self.threads.write(_transaction, self.database.write, work)


def _transaction(
    begin: Callable[[], AbstractContextManager[sa.Connection]], work: Callable[[sa.Connection], T]
) -> T:
    with begin() as connection:
        return work(connection)


Own = TypeVar("Own", bound=Repository)
Transaction = Callable[Concatenate[Own, sa.Connection, P], T]
Method = Callable[Concatenate[Own, P], Coroutine[Any, Any, T]]


def reads(work: Transaction[Own, P, T]) -> Method[Own, P, T]:
    @wraps(work)
    async def method(self: Own, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(lambda connection: work(self, connection, *args, **kwargs))

    return method


def writes(work: Transaction[Own, P, T]) -> Method[Own, P, T]:
    @wraps(work)
    async def method(self: Own, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(lambda connection: work(self, connection, *args, **kwargs))

    return method


@dataclass(frozen=True)
class RecordTable(Generic[R]):
    """Numbered rows of records."""

    table: sa.Table
    record: type[R]

    def find(self, connection: sa.Connection, *which: ColumnElement[bool], lock: bool = False) -> R | None:
        """`lock`: until the end of the transaction."""
        query = sa.select(self.table).where(*which)
        row = connection.execute(query.with_for_update() if lock else query).mappings().first()
        return None if row is None else record_of(self.record, row)

    def page_of(
        self,
        connection: sa.Connection,
        page: records.PageQuery,
        own: ColumnElement[bool],
        missing: Callable[[str], JobObjectNotFound],
        *filters: ColumnElement[bool],
    ) -> tuple[list[R], bool]:
        """Return a page by creation, and True if there are more. Raises `missing` without a row
        `page.after`."""
        number = self.table.c.number
        query = sa.select(self.table).where(own, *filters)
        if page.after is not None:
            last = sa.select(number).where(own, self.table.c.id == storable(page.after))
            after = connection.execute(last).scalar()
            if after is None:
                raise missing(storable(page.after))
            query = query.where(number > after if page.is_ascending else number < after)
        query = query.order_by(number if page.is_ascending else number.desc()).limit(page.limit + 1)
        rows = [record_of(self.record, row) for row in connection.execute(query).mappings()]
        return rows[: page.limit], len(rows) > page.limit


@dataclass(frozen=True)
class OwnedTable(RecordTable[R]):
    """Objects for their owner, while they live."""

    missing: str
    id_chars: int = 64
    is_live: Callable[[float], ColumnElement[bool]] | None = None
    children: tuple[sa.Column[str], ...] = ()
    """Columns of other tables with an object's id."""

    def of(self, owner: str, now_s: float) -> ColumnElement[bool]:
        is_own = self.table.c.owner == owner
        return is_own if self.is_live is None else sa.and_(is_own, self.is_live(now_s))

    def one(self, owner: str, object_id: str, now_s: float) -> ColumnElement[bool]:
        return sa.and_(self.table.c.id == storable(object_id), self.of(owner, now_s))

    def page(
        self, connection: sa.Connection, owner: str, page: records.PageQuery, *filters: ColumnElement[bool]
    ) -> tuple[list[R], bool]:
        own, missing = self.table.c.owner == owner, partial(self.not_found, param="after")
        return self.page_of(connection, page, own, missing, *filters)

    def delete(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        for column in (*self.children, self.table.c.id):
            connection.execute(sa.delete(column.table).where(column.in_(ids)))

    def not_found(self, object_id: str, *, param: str = "id") -> JobObjectNotFound:
        shown = storable(object_id)[: self.id_chars]
        return JobObjectNotFound(self.missing.format(id=shown), param=param)


@dataclass(frozen=True)
class ItemTable(RecordTable[R]):
    parent_id: sa.Column[str]

    def read(self, connection: sa.Connection, *which: ColumnElement[bool]) -> dict[str, list[R]]:
        query = sa.select(self.table).where(*which).order_by(self.table.c.number)
        found: dict[str, list[R]] = defaultdict(list)
        for row in connection.execute(query).mappings():
            found[row[self.parent_id.name]].append(record_of(self.record, row))
        return found

    def num_bytes(self, connection: sa.Connection, *which: ColumnElement[bool]) -> int:
        size = sa.select(sa.func.sum(sa.func.length(self.table.c.content))).where(*which)
        return connection.execute(size).scalar() or 0

    def add(self, connection: sa.Connection, parent_id: str, items: Sequence[R]) -> None:
        last = sa.select(sa.func.max(self.table.c.number)).where(self.parent_id == parent_id)
        first = connection.execute(last).scalar()
        rows = [
            {self.parent_id.name: parent_id, "number": number, **msgspec.structs.asdict(item)}
            for number, item in enumerate(items, 0 if first is None else first + 1)
        ]
        if rows:
            connection.execute(sa.insert(self.table), rows)


@dataclass(eq=False)
class OwnedRepository(Repository, Generic[R]):
    """Methods raise JobObjectNotFound for objects of other owners."""

    table: ClassVar[OwnedTable[Any]]

    @reads
    def get(self, connection: sa.Connection, owner: str, object_id: str) -> R:
        return self.own(connection, owner, object_id)

    def own(self, connection: sa.Connection, owner: str, object_id: str, *, lock: bool = False) -> R:
        which = self.table.one(owner, object_id, self.clock())
        found: R | None = self.table.find(connection, which, lock=lock)
        if found is None:
            raise self.table.not_found(object_id)
        return found


_SQLITE = SqliteOptions(lock_timeout_s=30, synchronous="FULL")
"""NORMAL survives kill -9 too, but a power loss may undo commits that clients know of. A sync is cheap beside
a row of 100 ms."""
_POSTGRES = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""Detect a vanished host, unless the URL has other values."""
_UNAVAILABLE = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""A lost connection, a full disk, a read-only replica. Other errors are our bugs."""


def open_database(where: str) -> Database:
    """Open a URL or a path. Raises StartupError; later uses raise JobsUnavailable while the database is
    away."""
    url = _url(where)
    shown = url.render_as_string(hide_password=True)
    try:
        if url.get_backend_name() == "sqlite":
            engine = sqlite_engine(url, _SQLITE)
        else:
            own = {name: value for name, value in _POSTGRES.items() if name not in url.query}
            engine = sa.create_engine(url, pool_pre_ping=True, connect_args=own)
        _prepare(engine)
    except ImportError as error:
        raise MissingExtra(f"cannot use {shown}, which needs", "postgres") from error
    except (SQLAlchemyError, OSError) as error:
        raise StartupError(f"cannot open the jobs database {shown}: {_reason(error)}") from None
    return Database(
        engine, lambda error: JobsUnavailable(_reason(error)) if isinstance(error, _UNAVAILABLE) else None
    )


def unavailable_reason(error: Exception) -> str | None:
    return error.reason if isinstance(error, JobsUnavailable) else None


def _url(where: str) -> sa.URL:
    if "://" not in where:
        return sa.URL.create("sqlite", database=str(expanded_path(where)))
    try:
        url = sa.make_url(where)
    except (ArgumentError, ValueError):
        raise StartupError("--jobs-db is neither a path nor a database URL") from None
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise StartupError(
            f"--jobs-db: {url.get_backend_name()} is not supported; supported are sqlite and postgresql"
        )
    return url


def _prepare(engine: sa.Engine) -> None:
    try:
        _create(engine)
    except (IntegrityError, ProgrammingError):  # another server was creating them just now
        _create(engine)
    with engine.begin() as connection:
        found = connection.execute(sa.select(schema_version.c.version)).scalars().all()
        if len(found) == 1 and found[0] in OLDER:
            this = sa.update(schema_version).where(schema_version.c.version == found[0])
            moved = connection.execute(this.values(version=SCHEMA_VERSION))
            if moved.rowcount and found[0] in _LACK_SECONDS:
                added = "audio_seconds FLOAT DEFAULT 0 NOT NULL"
                connection.execute(sa.text(f"ALTER TABLE usage ADD COLUMN {added}"))
            found = [SCHEMA_VERSION]
    if found != [SCHEMA_VERSION]:
        versions = ", ".join(map(str, found))
        raise StartupError(
            f"the jobs database has version {versions}, and this program needs {SCHEMA_VERSION}"
        )


def _create(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        metadata.create_all(connection)
        if connection.execute(sa.select(schema_version)).first() is None:
            connection.execute(sa.insert(schema_version).values(version=SCHEMA_VERSION))


def _reason(error: Exception) -> str:
    return " ".join(str(cause_of(error)).split())
