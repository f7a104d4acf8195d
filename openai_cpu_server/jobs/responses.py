"""Stored responses, in the database and for the API."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec
from sqlalchemy import CTE, ColumnElement, Connection, and_, delete, func, insert, select, update

from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound
from openai_cpu_server.jobs.conversations import KeptConversations, add_turn
from openai_cpu_server.jobs.records import (
    ChainedResponse,
    ConversationTurn,
    ItemRecord,
    PageQuery,
    ResponseRecord,
    ResponseStatus,
)
from openai_cpu_server.jobs.store.batches import is_left_behind, new_holder
from openai_cpu_server.jobs.store.database import (
    page_of,
    record_of,
    response_events,
    response_items,
    responses,
    storable,
    storable_page,
)
from openai_cpu_server.jobs.store.storage import StorageRoom
from openai_cpu_server.storage.database import Database, DatabaseThreads

_ACTIVE = tuple(status.value for status in ResponseStatus if not status.has_ended)
_SLACK_S = 24 * 3600
"""A response lives as long as those that continue it, or a day less to save writes."""
_PURGED_AT_ONCE = 500


class ResponseStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, record: ResponseRecord, items: Sequence[ItemRecord], turn: ConversationTurn | None = None
    ) -> None:
        """Store a response. `turn`: added to its conversation, if that still exists."""
        with self._database.write() as connection:
            connection.execute(insert(responses).values(**_row(record)))
            _add_items(connection, record.id, items, first=0)
            if record.previous_id is not None:
                _keep_as_long(connection, record)
            if turn is not None:
                add_turn(connection, record.owner, turn, record.created_at, only_new=True)

    def finish(
        self,
        record: ResponseRecord,
        outputs: Sequence[ItemRecord],
        events: bytes,
        turn: ConversationTurn | None = None,
    ) -> bool:
        """Store the end. Returns False if the response has ended otherwise or is deleted."""
        with self._database.write() as connection:
            if not _changed(connection, record.id, _row(record)):
                return False
            _add_items(connection, record.id, outputs, first=_num_items(connection, record.id))
            connection.execute(insert(response_events).values(response_id=record.id, content=events))
            if turn is not None:
                add_turn(connection, record.owner, turn, record.created_at, only_new=True)
        return True

    def get(self, owner: str, response_id: str, now_s: float) -> ResponseRecord:
        """Return one response. Raises JobObjectNotFound."""
        query = select(responses).where(_visible(owner, response_id, now_s))
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise response_not_found(response_id)
        return record_of(ResponseRecord, row)

    def chain(self, owner: str, response_id: str, now_s: float, *, max_bytes: int) -> list[ChainedResponse]:
        """Return a response and its predecessors, oldest first. Raises JobObjectNotFound, also for a
        deleted predecessor, or InvalidRequest if too long."""
        with self._database.read() as connection:
            _require(connection, owner, response_id, now_s)
            chain = _chain(owner, response_id)
            own = response_items.c.response_id.in_(select(chain.c.id))
            size = connection.execute(select(func.sum(func.length(response_items.c.content))).where(own))
            if (size.scalar() or 0) > max_bytes:
                raise _too_long(max_bytes)
            query = select(responses).where(responses.c.id.in_(select(chain.c.id)))
            records = [record_of(ResponseRecord, row) for row in connection.execute(query).mappings()]
            items = _items_of(connection, own)
        return _linked(response_id, {record.id: record for record in records}, items)

    def inputs(
        self, owner: str, response_id: str, page: PageQuery, now_s: float
    ) -> tuple[list[ItemRecord], bool]:
        """Return a page of input items, and True if there are more. Raises JobObjectNotFound."""
        number = response_items.c.number
        own = and_(response_items.c.response_id == response_id, response_items.c.is_output.is_(False))
        last = select(number).where(own, response_items.c.id == page.after)
        with self._database.read() as connection:
            _require(connection, owner, response_id, now_s)
            query = select(response_items).where(own)
            found = page_of(connection, ItemRecord, query, number, page, last)
        if found is None:
            raise JobObjectNotFound(f"There is no item '{page.after}'.", param="after")
        return found

    def items(self, owner: str, ids: Sequence[str], now_s: float) -> dict[str, bytes]:
        """Return the items that exist in any response of this owner."""
        seen = and_(responses.c.owner == owner, responses.c.expires_at > now_s)
        query = select(response_items.c.id, response_items.c.content).join(
            responses, responses.c.id == response_items.c.response_id
        )
        with self._database.read() as connection:
            found = connection.execute(query.where(seen, response_items.c.id.in_(ids)))
            return {row.id: row.content for row in found}

    def events(self, response_id: str) -> bytes | None:
        """Return the stream of a background response, or None if it has none or has not ended."""
        query = select(response_events.c.content).where(response_events.c.response_id == response_id)
        with self._database.read() as connection:
            content: bytes | None = connection.execute(query).scalar()
        return content

    def renew(self, record: ResponseRecord, *, until_s: float) -> bool:
        """Renew the lease. Returns False if the response has ended or is deleted."""
        values = {"lease_until": until_s, "status": record.status.value, "response": record.response}
        with self._database.write() as connection:
            return _changed(connection, record.id, values)

    def end(self, record: ResponseRecord) -> bool:
        """Store another end, by cancellation or because its process died. Returns False if it has ended."""
        with self._database.write() as connection:
            return _changed(
                connection, record.id, {"status": record.status.value, "response": record.response}
            )

    def delete(self, owner: str, response_id: str, now_s: float) -> None:
        """Delete a response and its items. Raises JobObjectNotFound."""
        with self._database.write() as connection:
            _require(connection, owner, response_id, now_s)
            _delete(connection, [response_id])

    def purge(self, now_s: float) -> int:
        """Delete some expired responses. Returns their number; call again while it is positive."""
        expired = select(responses.c.id).where(responses.c.expires_at <= now_s).limit(_PURGED_AT_ONCE)
        with self._database.write() as connection:
            ids = list(connection.execute(expired).scalars())
            _delete(connection, ids)
        return len(ids)


def response_not_found(response_id: str, *, param: str = "id") -> JobObjectNotFound:
    return JobObjectNotFound(f"Response with id '{response_id[:64]}' not found.", param=param)


def _too_long(max_bytes: int) -> InvalidRequest:
    message = f"The responses that this one goes on from have more than {max_bytes} bytes."
    return InvalidRequest(message, param="previous_response_id", code="context_length_exceeded")


def _visible(owner: str, response_id: str, now_s: float) -> ColumnElement[bool]:
    return and_(responses.c.id == response_id, responses.c.owner == owner, responses.c.expires_at > now_s)


def _require(connection: Connection, owner: str, response_id: str, now_s: float) -> None:
    if connection.execute(select(responses.c.id).where(_visible(owner, response_id, now_s))).first() is None:
        raise response_not_found(response_id)


def _changed(connection: Connection, response_id: str, values: Mapping[str, object]) -> bool:
    active = and_(responses.c.id == response_id, responses.c.status.in_(_ACTIVE))
    return connection.execute(update(responses).where(active).values(**values)).rowcount == 1


def _chain(owner: str, response_id: str) -> CTE:
    last = select(responses.c.id, responses.c.previous_id).where(
        responses.c.id == response_id, responses.c.owner == owner
    )
    chain = last.cte("chain", recursive=True)
    earlier = select(responses.c.id, responses.c.previous_id).where(
        responses.c.id == chain.c.previous_id, responses.c.owner == owner
    )
    return chain.union_all(earlier)


def _linked(
    last_id: str, records: dict[str, ResponseRecord], items: dict[str, list[ItemRecord]]
) -> list[ChainedResponse]:
    links: list[ChainedResponse] = []
    wanted: str | None = last_id
    while wanted is not None:
        if wanted not in records:
            raise response_not_found(wanted)
        links.append(ChainedResponse(records[wanted], tuple(items[wanted])))
        wanted = records[wanted].previous_id
    return links[::-1]


def _items_of(connection: Connection, which: ColumnElement[bool]) -> dict[str, list[ItemRecord]]:
    query = select(response_items).where(which).order_by(response_items.c.number)
    found: dict[str, list[ItemRecord]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        found[row["response_id"]].append(record_of(ItemRecord, row))
    return found


def _keep_as_long(connection: Connection, record: ResponseRecord) -> None:
    assert record.previous_id is not None
    chain = _chain(record.owner, record.previous_id)
    short = and_(
        responses.c.id.in_(select(chain.c.id)), responses.c.expires_at < record.expires_at - _SLACK_S
    )
    connection.execute(update(responses).where(short).values(expires_at=record.expires_at))


def _add_items(connection: Connection, response_id: str, items: Sequence[ItemRecord], *, first: int) -> None:
    rows = [
        {
            "response_id": response_id,
            "number": number,
            "id": item.id,
            "is_output": item.is_output,
            "content": item.content,
        }
        for number, item in enumerate(items, first)
    ]
    if rows:
        connection.execute(insert(response_items), rows)


def _num_items(connection: Connection, response_id: str) -> int:
    counted = select(func.count()).select_from(response_items)
    return connection.execute(counted.where(response_items.c.response_id == response_id)).scalar_one()


def _delete(connection: Connection, ids: Sequence[str]) -> None:
    for table in (response_items, response_events):
        connection.execute(delete(table).where(table.c.response_id.in_(ids)))
    connection.execute(delete(responses).where(responses.c.id.in_(ids)))


def _row(record: ResponseRecord) -> dict[str, object]:
    return {**msgspec.structs.asdict(record), "status": record.status.value}


_PURGE_EVERY_S = 600.0
RENEW_S = 5.0
"""Interval of lease renewals."""
_LEASE_S = 30.0
"""Silence after which another machine's response counts as abandoned."""


class KeptResponses:
    """For an event loop. Objects of other owners raise JobObjectNotFound."""

    def __init__(
        self,
        database: Database,
        threads: DatabaseThreads,
        storage: StorageRoom,
        *,
        lifetime_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = ResponseStore(database)
        self._threads = threads
        self.storage = storage
        self._lifetime_s = lifetime_s
        self._clock = clock
        self.conversations = KeptConversations(database, threads, storage, lifetime_s=lifetime_s, clock=clock)
        self._holder = new_holder()
        self._purge_at_s = 0.0

    def leased(self, record: ResponseRecord) -> ResponseRecord:
        return msgspec.structs.replace(
            record, lease_holder=self._holder, lease_until=self._clock() + _LEASE_S
        )

    def is_left_behind(self, record: ResponseRecord) -> bool:
        """Return True if an unfinished response has lost its process."""
        if record.status.has_ended or record.lease_holder is None:
            return False
        return is_left_behind(record.lease_holder, record.lease_until, self._clock())

    def expiry(self, created_at: int) -> int:
        return created_at + int(self._lifetime_s)

    async def add(
        self, record: ResponseRecord, items: Sequence[ItemRecord], turn: ConversationTurn | None = None
    ) -> None:
        await self.purge()
        await self._threads.write(self._store.add, record, items, turn)
        self.storage.grew(record.owner, _size(record, items, turn))

    async def finish(
        self,
        record: ResponseRecord,
        outputs: Sequence[ItemRecord],
        events: Sequence[bytes],
        turn: ConversationTurn | None = None,
    ) -> bool:
        packed = await asyncio.to_thread(_packed, events)
        self.storage.grew(record.owner, _size(record, outputs, turn) + len(packed))
        return await self._threads.write(self._store.finish, record, outputs, packed, turn)

    async def end(self, record: ResponseRecord) -> bool:
        return await self._threads.write(self._store.end, record)

    async def get(self, owner: str, response_id: str) -> ResponseRecord:
        return await self._threads.read(self._store.get, owner, storable(response_id), self._clock())

    async def chain(self, owner: str, response_id: str, *, max_bytes: int) -> list[ChainedResponse]:
        known, now_s = storable(response_id), self._clock()
        return await self._threads.read(self._store.chain, owner, known, now_s, max_bytes=max_bytes)

    async def inputs(self, owner: str, response_id: str, page: PageQuery) -> tuple[list[ItemRecord], bool]:
        known = storable(response_id), storable_page(page)
        return await self._threads.read(self._store.inputs, owner, *known, self._clock())

    async def items(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        return await self._threads.read(self._store.items, owner, [*map(storable, ids)], self._clock())

    async def events(self, response_id: str) -> list[bytes] | None:
        packed = await self._threads.read(self._store.events, storable(response_id))
        return None if packed is None else await asyncio.to_thread(_unpacked, packed)

    async def renew(self, record: ResponseRecord) -> bool:
        """Return False if the response has ended or is deleted."""
        return await self._threads.write(self._store.renew, record, until_s=self._clock() + _LEASE_S)

    async def delete(self, owner: str, response_id: str) -> None:
        await self._threads.write(self._store.delete, owner, storable(response_id), self._clock())
        self.storage.changed(owner)

    async def purge(self) -> None:
        """Delete expired responses and conversations, at intervals."""
        now_s = self._clock()
        if now_s < self._purge_at_s:
            return
        self._purge_at_s = now_s + _PURGE_EVERY_S
        while await self._threads.write(self._store.purge, now_s):
            pass
        await self.conversations.purge()


def _size(record: ResponseRecord, items: Sequence[ItemRecord], turn: ConversationTurn | None) -> int:
    added = 0 if turn is None else turn.num_bytes
    return added + len(record.response) + len(record.written) + sum(len(item.content) for item in items)


def _packed(events: Sequence[bytes]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(events))


def _unpacked(packed: bytes) -> list[bytes]:
    return msgspec.msgpack.decode(zlib.decompress(packed), type=list[bytes])
