"""Storage limits of owners, and free space on the disk."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, NamedTuple, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Connection, func, or_, select

from openai_cpu_server.errors import DiskFull, StorageFull
from openai_cpu_server.jobs.records import ACTIVE, NO_LIMITS, StorageLimits, StoredAmount
from openai_cpu_server.jobs.store import database as db
from openai_cpu_server.jobs.store.files import is_there

CONVERSATION_BYTES = 1024


def _sum(size: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(size), 0)


def _length(first: ColumnElement[bytes], *others: ColumnElement[bytes]) -> ColumnElement[int]:
    return _sum(sum(map(func.length, others), func.length(first)))


_MIB = 1024 * 1024
_FREE_SHARE, _FREE_BYTES = 0.05, 1024 * _MIB
"""Smaller of the two, kept free for logs and other programs."""
_OLD_S = 60.0
"""Age of a count, because other servers store, and objects expire."""
_FRESH_S = 1.0
"""Rejections need a newer count."""
_DISK_S = 1.0
_PURGED_AT_ONCE = 500


class DiskSpace(NamedTuple):
    total: int
    free: int


class _Figure(NamedTuple):
    counted_s: float
    stored: StoredAmount


def disk_space(folder: Path) -> DiskSpace:
    usage = shutil.disk_usage(folder)
    return DiskSpace(usage.total, usage.free)


@dataclass(eq=False)
class StorageQuotas(db.Repository):
    space: Callable[[Path], DiskSpace] = disk_space
    _figures: dict[str, _Figure] = field(default_factory=dict, init=False)
    _coming: dict[str, StoredAmount] = field(default_factory=dict, init=False)
    _left: tuple[float, int] | None = field(default=None, init=False)

    @db.reads
    def stored(self, connection: Connection, owner: str) -> StoredAmount:
        now_s = self.clock()
        own = select(func.count(), _sum(db.files.c.bytes)).where(db.files.c.owner == owner, is_there(now_s))
        num_files, num_bytes = connection.execute(own).one()
        running = db.batches.c.owner == owner, db.batches.c.status.in_(ACTIVE)
        outputs, errors = (
            select(each).where(*running) for each in (db.batches.c.output_id, db.batches.c.error_id)
        )
        own_responses = db.responses.c.owner == owner, db.responses.c.expires_at > now_s
        response_ids = select(db.responses.c.id).where(*own_responses)
        own_conversations = db.conversations.c.owner == owner, db.conversations.c.expires_at > now_s
        conversation_ids = select(db.conversations.c.id).where(*own_conversations)
        items, turns, events = db.response_items.c, db.conversation_items.c, db.response_events.c
        sizes = (
            select(_length(db.parts.c.content)).where(
                or_(db.parts.c.file_id.in_(outputs), db.parts.c.file_id.in_(errors))
            ),
            select(_length(db.responses.c.response, db.responses.c.written)).where(*own_responses),
            select(_length(items.content)).where(items.response_id.in_(response_ids)),
            select(_length(events.content)).where(events.response_id.in_(response_ids)),
            select(func.count() * CONVERSATION_BYTES).where(*own_conversations),
            select(_length(turns.content, turns.written)).where(turns.conversation_id.in_(conversation_ids)),
        )
        num_bytes += sum(int(connection.execute(size).scalar_one()) for size in sizes)
        return StoredAmount(num_bytes=int(num_bytes), num_files=int(num_files))

    async def check(self, owner: str, limits: StorageLimits, amount: StoredAmount) -> None:
        """Reject what exceeds the limits. Raises StorageFull, DiskFull."""
        await self.check_disk(amount.num_bytes)
        await self._check_limits(owner, limits, amount)

    async def check_disk(self, num_bytes: int = 0) -> None:
        """Check the database's disk, unless it is elsewhere. Raises DiskFull."""
        if (folder := self.database.folder) is None:
            return
        if self._left is None or self.clock() - self._left[0] >= _DISK_S:
            space = await asyncio.to_thread(self.space, folder)
            self._left = self.clock(), space.free - int(min(_FREE_SHARE * space.total, _FREE_BYTES))
        if self._left[1] < num_bytes:
            raise DiskFull

    @asynccontextmanager
    async def reserved(self, owner: str, limits: StorageLimits, amount: StoredAmount) -> AsyncIterator[None]:
        before = self._coming.get(owner, StoredAmount())
        self._coming[owner] = before + amount  # before the first wait, so that concurrent uploads see it
        try:
            await self.check_disk(amount.num_bytes)
            await self._check_limits(owner, limits, StoredAmount())
            yield
        finally:
            self._coming[owner] -= amount
            if self._coming[owner] == StoredAmount():
                del self._coming[owner]
            self.changed(owner)

    def grew(self, owner: str, num_bytes: int) -> None:
        figure = self._figures.get(owner)
        if figure is not None:
            self._figures[owner] = figure._replace(stored=figure.stored + StoredAmount(num_bytes=num_bytes))

    def changed(self, owner: str) -> None:
        self._figures.pop(owner, None)
        self._left = None

    async def _check_limits(self, owner: str, limits: StorageLimits, amount: StoredAmount) -> None:
        if limits == NO_LIMITS:
            return
        amount += self._coming.get(owner, StoredAmount())
        if limits.excess(amount + await self._stored(owner, _OLD_S)) is None:
            return
        excess = limits.excess(amount + await self._stored(owner, _FRESH_S))
        if excess is not None:
            raise StorageFull(excess)

    async def _stored(self, owner: str, oldest_s: float) -> StoredAmount:
        figure = self._figures.get(owner)
        if figure is None or self.clock() - figure.counted_s >= oldest_s:
            figure = self._figures[owner] = _Figure(self.clock(), await self.stored(owner))
        return figure.stored


P = ParamSpec("P")
T = TypeVar("T")


Storing = TypeVar("Storing", bound="StoringRepository[Any]")
OwnersMethod = Callable[Concatenate[Storing, str, P], Coroutine[Any, Any, T]]


def recounted(work: OwnersMethod[Storing, P, T]) -> OwnersMethod[Storing, P, T]:
    """Forget the stored amount of the owner, the first argument, afterwards."""

    @wraps(work)
    async def method(self: Storing, owner: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result = await work(self, owner, *args, **kwargs)
        self.storage.changed(owner)
        return result

    return method


@dataclass(eq=False, kw_only=True)
class StoringRepository(db.OwnedRepository[db.R]):
    """Objects that count for their owner's limits, and expire."""

    item_table: ClassVar[db.ItemTable[Any]]
    storage: StorageQuotas
    lifetime_s: int

    @recounted
    @db.writes
    def delete(self, connection: Connection, owner: str, object_id: str) -> None:
        self.own(connection, owner, object_id)
        self.table.delete(connection, [db.storable(object_id)])

    @db.reads
    def content_by_id(self, connection: Connection, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        parents, items = self.table.table, self.item_table.table.c
        query = select(items.id, items.content).join(parents, parents.c.id == self.item_table.parent_id)
        query = query.where(self.table.of(owner, self.clock()), items.id.in_([*map(db.storable, ids)]))
        return {row.id: row.content for row in connection.execute(query)}

    @db.writes
    def purge_some(self, connection: Connection) -> int:
        """Return the number of deleted objects; call again while it is positive."""
        objects = self.table.table.c
        expired = select(objects.id).where(objects.expires_at <= self.clock()).limit(_PURGED_AT_ONCE)
        ids = connection.execute(expired).scalars().all()
        self.table.delete(connection, ids)
        return len(ids)
