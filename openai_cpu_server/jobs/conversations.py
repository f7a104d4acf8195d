"""Conversations, in the database and for the API."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound
from openai_cpu_server.jobs.records import ConversationRecord, ConversationTurn, KeptItem, PageQuery
from openai_cpu_server.jobs.store.database import (
    conversation_items,
    conversations,
    page_of,
    record_of,
    storable,
    storable_page,
)
from openai_cpu_server.jobs.store.storage import StorageRoom
from openai_cpu_server.storage.database import Database, DatabaseThreads

_PURGED_AT_ONCE = 500


class ConversationStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, record: ConversationRecord, items: Sequence[KeptItem]) -> None:
        with self._database.write() as connection:
            connection.execute(insert(conversations).values(**msgspec.structs.asdict(record)))
            _add(connection, record.id, items)

    def get(self, owner: str, conversation_id: str, now_s: float) -> ConversationRecord:
        """Return the record. Raises JobObjectNotFound."""
        with self._database.read() as connection:
            return _required(connection, owner, conversation_id, now_s)

    def change(
        self, owner: str, conversation_id: str, metadata: Mapping[str, str], now_s: float
    ) -> ConversationRecord:
        """Replace the metadata. Raises JobObjectNotFound."""
        with self._database.write() as connection:
            record = _required(connection, owner, conversation_id, now_s)
            own = conversations.c.id == conversation_id
            connection.execute(update(conversations).where(own).values(metadata=dict(metadata)))
        return msgspec.structs.replace(record, metadata=dict(metadata))

    def delete(self, owner: str, conversation_id: str, now_s: float) -> None:
        """Delete with its items. Raises JobObjectNotFound."""
        with self._database.write() as connection:
            _required(connection, owner, conversation_id, now_s)
            _delete(connection, [conversation_id])

    def append(self, owner: str, turn: ConversationTurn, now_s: float, *, only_new: bool) -> None:
        """Add items. Raises JobObjectNotFound, or InvalidRequest for an existing one unless `only_new`."""
        with self._database.write() as connection:
            if not add_turn(connection, owner, turn, now_s, only_new=only_new):
                raise conversation_not_found(turn.conversation_id)

    def items(
        self, owner: str, conversation_id: str, now_s: float, *, max_bytes: int
    ) -> tuple[KeptItem, ...]:
        """Return all items in order. Raises JobObjectNotFound, or InvalidRequest for more than
        `max_bytes`."""
        own = conversation_items.c.conversation_id == conversation_id
        with self._database.read() as connection:
            _required(connection, owner, conversation_id, now_s)
            size = select(func.sum(func.length(conversation_items.c.content))).where(own)
            if (connection.execute(size).scalar() or 0) > max_bytes:
                raise _too_long(max_bytes)
            query = select(conversation_items).where(own).order_by(conversation_items.c.number)
            return tuple(record_of(KeptItem, row) for row in connection.execute(query).mappings())

    def page(
        self, owner: str, conversation_id: str, page: PageQuery, now_s: float
    ) -> tuple[list[KeptItem], bool]:
        """Return a page of items, and True if there are more. Raises JobObjectNotFound."""
        number = conversation_items.c.number
        own = conversation_items.c.conversation_id == conversation_id
        last = select(number).where(own, conversation_items.c.id == page.after)
        with self._database.read() as connection:
            _required(connection, owner, conversation_id, now_s)
            found = page_of(connection, KeptItem, select(conversation_items).where(own), number, page, last)
        if found is None:
            raise _no_item(str(page.after), param="after")
        return found

    def item(self, owner: str, conversation_id: str, item_id: str, now_s: float) -> KeptItem:
        """Return one item. Raises JobObjectNotFound."""
        with self._database.read() as connection:
            _required(connection, owner, conversation_id, now_s)
            query = select(conversation_items).where(_one(conversation_id, item_id))
            row = connection.execute(query).mappings().first()
        if row is None:
            raise _no_item(item_id)
        return record_of(KeptItem, row)

    def delete_item(self, owner: str, conversation_id: str, item_id: str, now_s: float) -> ConversationRecord:
        """Delete one item. Raises JobObjectNotFound."""
        with self._database.write() as connection:
            record = _required(connection, owner, conversation_id, now_s)
            which = _one(conversation_id, item_id)
            row = connection.execute(select(conversation_items.c.answer_id).where(which)).first()
            if row is None:
                raise _no_item(item_id)
            connection.execute(delete(conversation_items).where(which))
            if row.answer_id is not None:
                _forget_tokens(connection, conversation_id, row.answer_id)
        return record

    def found(self, owner: str, ids: Sequence[str], now_s: float) -> dict[str, bytes]:
        """Return the items that exist in any conversation of this owner."""
        seen = and_(conversations.c.owner == owner, conversations.c.expires_at > now_s)
        query = select(conversation_items.c.id, conversation_items.c.content).join(
            conversations, conversations.c.id == conversation_items.c.conversation_id
        )
        with self._database.read() as connection:
            rows = connection.execute(query.where(seen, conversation_items.c.id.in_(ids)))
            return {row.id: row.content for row in rows}

    def purge(self, now_s: float) -> int:
        """Delete some expired conversations. Returns their number; call again while it is positive."""
        expired = select(conversations.c.id).where(conversations.c.expires_at <= now_s)
        with self._database.write() as connection:
            ids = list(connection.execute(expired.limit(_PURGED_AT_ONCE)).scalars())
            _delete(connection, ids)
        return len(ids)


def add_turn(
    connection: Connection, owner: str, turn: ConversationTurn, now_s: float, *, only_new: bool
) -> bool:
    """Append items, or return False if the conversation does not exist. Raises InvalidRequest for existing
    items, unless `only_new` skips them."""
    own = _visible(owner, turn.conversation_id, now_s)
    # First of all: PostgreSQL then lets nobody else number items of this conversation meanwhile.
    changed = connection.execute(update(conversations).where(own).values(expires_at=turn.expires_at))
    if changed.rowcount != 1:
        return False
    known = _known(connection, turn)
    if known and not only_new:
        at = next(index for index, item in enumerate(turn.items) if item.id in known)
        message = f"Item with id '{turn.items[at].id}' is in this conversation already."
        raise InvalidRequest(message, param=f"items[{at}].id", code="invalid_value")
    new = [item for item in turn.items if item.id not in known]
    _add(connection, turn.conversation_id, new)
    return True


def conversation_not_found(conversation_id: str, *, param: str = "id") -> JobObjectNotFound:
    return JobObjectNotFound(f"Conversation with id '{conversation_id[:64]}' not found.", param=param)


def _no_item(item_id: str, *, param: str = "item_id") -> JobObjectNotFound:
    return JobObjectNotFound(f"Item with id '{item_id[:64]}' not found in this conversation.", param=param)


def _too_long(max_bytes: int) -> InvalidRequest:
    message = f"The conversation has more than {max_bytes} bytes."
    return InvalidRequest(message, param="conversation", code="context_length_exceeded")


def _visible(owner: str, conversation_id: str, now_s: float) -> ColumnElement[bool]:
    table = conversations.c
    return and_(table.id == conversation_id, table.owner == owner, table.expires_at > now_s)


def _one(conversation_id: str, item_id: str) -> ColumnElement[bool]:
    table = conversation_items.c
    return and_(table.conversation_id == conversation_id, table.id == item_id)


def _required(connection: Connection, owner: str, conversation_id: str, now_s: float) -> ConversationRecord:
    query = select(conversations).where(_visible(owner, conversation_id, now_s))
    row = connection.execute(query).mappings().first()
    if row is None:
        raise conversation_not_found(conversation_id)
    return record_of(ConversationRecord, row)


def _known(connection: Connection, turn: ConversationTurn) -> frozenset[str]:
    ids = [item.id for item in turn.items]
    table = conversation_items.c
    query = select(table.id).where(table.conversation_id == turn.conversation_id, table.id.in_(ids))
    return frozenset(connection.execute(query).scalars())


def _add(connection: Connection, conversation_id: str, items: Sequence[KeptItem]) -> None:
    table = conversation_items.c
    last = select(func.max(table.number)).where(table.conversation_id == conversation_id)
    first = (connection.execute(last).scalar() or 0) + 1
    rows = [
        {"conversation_id": conversation_id, "number": number, **msgspec.structs.asdict(item)}
        for number, item in enumerate(items, first)
    ]
    if rows:
        connection.execute(insert(conversation_items), rows)


def _forget_tokens(connection: Connection, conversation_id: str, answer_id: str) -> None:
    table = conversation_items.c
    of_it = and_(table.conversation_id == conversation_id, table.answer_id == answer_id)
    connection.execute(update(conversation_items).where(of_it).values(answer_id=None, written=b""))


def _delete(connection: Connection, ids: Sequence[str]) -> None:
    of_them = conversation_items.c.conversation_id.in_(ids)
    connection.execute(delete(conversation_items).where(of_them))
    connection.execute(delete(conversations).where(conversations.c.id.in_(ids)))


class KeptConversations:
    """For an event loop. Objects of other owners raise JobObjectNotFound. A conversation lives as long as
    a response, from its last change on."""

    def __init__(
        self,
        database: Database,
        threads: DatabaseThreads,
        storage: StorageRoom,
        *,
        lifetime_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = ConversationStore(database)
        self._threads = threads
        self._storage = storage
        self._lifetime_s = lifetime_s
        self._clock = clock

    @property
    def now(self) -> int:
        return int(self._clock())

    def turn(self, conversation_id: str, items: Sequence[KeptItem]) -> ConversationTurn:
        expires_at = self.now + int(self._lifetime_s)
        return ConversationTurn(storable(conversation_id), tuple(items), expires_at)

    async def create(
        self, owner: str, conversation_id: str, metadata: Mapping[str, str], items: Sequence[KeptItem]
    ) -> ConversationRecord:
        now = self.now
        record = ConversationRecord(
            id=conversation_id,
            owner=owner,
            created_at=now,
            expires_at=now + int(self._lifetime_s),
            metadata={storable(name): storable(value) for name, value in metadata.items()},
        )
        await self._threads.write(self._store.create, record, items)
        self._storage.changed(owner)
        return record

    async def get(self, owner: str, conversation_id: str) -> ConversationRecord:
        return await self._threads.read(self._store.get, owner, storable(conversation_id), self._clock())

    async def change(
        self, owner: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> ConversationRecord:
        known = storable(conversation_id), {storable(key): storable(text) for key, text in metadata.items()}
        return await self._threads.write(self._store.change, owner, *known, self._clock())

    async def delete(self, owner: str, conversation_id: str) -> None:
        await self._threads.write(self._store.delete, owner, storable(conversation_id), self._clock())
        self._storage.changed(owner)

    async def append(self, owner: str, turn: ConversationTurn, *, only_new: bool = False) -> None:
        now_s = self._clock()
        await self._threads.write(self._store.append, owner, turn, now_s, only_new=only_new)
        self._storage.grew(owner, turn.num_bytes)

    async def items(self, owner: str, conversation_id: str, *, max_bytes: int) -> tuple[KeptItem, ...]:
        known, now_s = storable(conversation_id), self._clock()
        return await self._threads.read(self._store.items, owner, known, now_s, max_bytes=max_bytes)

    async def page(self, owner: str, conversation_id: str, page: PageQuery) -> tuple[list[KeptItem], bool]:
        known = storable(conversation_id), storable_page(page)
        return await self._threads.read(self._store.page, owner, *known, self._clock())

    async def item(self, owner: str, conversation_id: str, item_id: str) -> KeptItem:
        known = storable(conversation_id), storable(item_id)
        return await self._threads.read(self._store.item, owner, *known, self._clock())

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> ConversationRecord:
        known = storable(conversation_id), storable(item_id)
        record = await self._threads.write(self._store.delete_item, owner, *known, self._clock())
        self._storage.changed(owner)
        return record

    async def found(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        return await self._threads.read(self._store.found, owner, [*map(storable, ids)], self._clock())

    async def purge(self) -> None:
        while await self._threads.write(self._store.purge, self._clock()):
            pass
