from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import CTE, Connection, and_, insert, select, update

from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound
from openai_cpu_server.jobs.conversations import ConversationRepository, add_turn
from openai_cpu_server.jobs.records import (
    ChainedResponse,
    ConversationTurn,
    ItemRecord,
    PageQuery,
    ResponseRecord,
    ResponseStatus,
)
from openai_cpu_server.jobs.store import database as db
from openai_cpu_server.jobs.store.batches import is_left_behind, new_holder
from openai_cpu_server.jobs.store.storage import StoringRepository

_RESPONSES = db.OwnedTable(
    db.responses,
    ResponseRecord,
    "Response with id '{id}' not found.",
    is_live=lambda now_s: db.responses.c.expires_at > now_s,
    children=(db.response_items.c.response_id, db.response_events.c.response_id),
)
_ITEMS = db.ItemTable(db.response_items, ItemRecord, db.response_items.c.response_id)
_ACTIVE = tuple(status.value for status in ResponseStatus if not status.has_ended)
_SLACK_S = 24 * 3600
"""A response lives as long as those that continue it, or a day less to save writes."""
_PURGE_EVERY_S = 600.0
RENEW_S = 5.0
_LEASE_S = 30.0
"""Silence of another machine after which a response is abandoned."""


@dataclass(eq=False, kw_only=True)
class ResponseRepository(StoringRepository[ResponseRecord]):
    table, item_table = _RESPONSES, _ITEMS

    def __post_init__(self) -> None:
        self.conversations = ConversationRepository(
            self.database, self.threads, self.clock, storage=self.storage, lifetime_s=self.lifetime_s
        )
        self._holder = new_holder()
        self._purge_at_s = 0.0

    def leased(self, record: ResponseRecord) -> ResponseRecord:
        lease_until = self.clock() + _LEASE_S
        return msgspec.structs.replace(record, lease_holder=self._holder, lease_until=lease_until)

    def is_left_behind(self, record: ResponseRecord) -> bool:
        """Return True if the process of an unfinished response is gone."""
        if record.status.has_ended or record.lease_holder is None:
            return False
        return is_left_behind(record.lease_holder, record.lease_until, self.clock())

    def expiry(self, created_at: int) -> int:
        return created_at + self.lifetime_s

    async def add(
        self, record: ResponseRecord, items: Sequence[ItemRecord], turn: ConversationTurn | None = None
    ) -> None:
        """`turn`: added to its conversation, if that still exists."""
        await self.purge()

        def add(connection: Connection) -> None:
            connection.execute(insert(db.responses).values(**_row(record)))
            _ITEMS.add(connection, record.id, items)
            if record.previous_id is not None:
                chain = _chain(record.owner, record.previous_id)
                is_short = db.responses.c.expires_at < record.expires_at - _SLACK_S
                short = update(db.responses).where(db.responses.c.id.in_(select(chain.c.id)), is_short)
                connection.execute(short.values(expires_at=record.expires_at))
            if turn is not None:
                add_turn(connection, record.owner, turn, record.created_at, only_new=True)

        await self._write(add)
        self.storage.grew(record.owner, _size(record, items, turn))

    async def finish(
        self,
        record: ResponseRecord,
        outputs: Sequence[ItemRecord],
        events: Sequence[bytes],
        turn: ConversationTurn | None = None,
    ) -> bool:
        """Return False if the response has ended or is deleted."""
        packed = await asyncio.to_thread(lambda: zlib.compress(msgspec.msgpack.encode(events)))
        self.storage.grew(record.owner, _size(record, outputs, turn) + len(packed))

        def finish(connection: Connection) -> bool:
            if not _change_active(connection, record.id, _row(record)):
                return False
            _ITEMS.add(connection, record.id, outputs)
            connection.execute(insert(db.response_events).values(response_id=record.id, content=packed))
            if turn is not None:
                add_turn(connection, record.owner, turn, record.created_at, only_new=True)
            return True

        return await self._write(finish)

    @db.writes
    def end(self, connection: Connection, record: ResponseRecord) -> bool:
        """Return False if the response has ended."""
        values = {"status": record.status.value, "response": record.response}
        return _change_active(connection, record.id, values)

    @db.writes
    def renew(self, connection: Connection, record: ResponseRecord) -> bool:
        """Return False if the response has ended or is deleted."""
        lease_until = self.clock() + _LEASE_S
        values = {"lease_until": lease_until, "status": record.status.value, "response": record.response}
        return _change_active(connection, record.id, values)

    @db.reads
    def chain(
        self, connection: Connection, owner: str, response_id: str, *, max_bytes: int
    ) -> list[ChainedResponse]:
        """Return the response and its predecessors, oldest first. Raises JobObjectNotFound."""
        last = self.own(connection, owner, response_id)
        ids = select(_chain(owner, last.id).c.id)
        own = _ITEMS.parent_id.in_(ids)
        if _ITEMS.num_bytes(connection, own) > max_bytes:
            message = f"The responses that this one continues have more than {max_bytes} bytes."
            raise InvalidRequest(message, param="previous_response_id", code="context_length_exceeded")
        rows = connection.execute(select(db.responses).where(db.responses.c.id.in_(ids))).mappings()
        records = {row["id"]: db.record_of(ResponseRecord, row) for row in rows}
        items = _ITEMS.read(connection, own)
        links: list[ChainedResponse] = []
        link_id: str | None = last.id
        while link_id is not None:
            if link_id not in records:
                raise _RESPONSES.not_found(link_id)
            links.append(ChainedResponse(records[link_id], tuple(items[link_id])))
            link_id = records[link_id].previous_id
        return links[::-1]

    @db.reads
    def inputs(
        self, connection: Connection, owner: str, response_id: str, page: PageQuery
    ) -> tuple[list[ItemRecord], bool]:
        record = self.own(connection, owner, response_id)
        own = and_(_ITEMS.parent_id == record.id, db.response_items.c.is_output.is_(False))

        def missing(item_id: str) -> JobObjectNotFound:
            return JobObjectNotFound(f"The item '{item_id}' does not exist.", param="after")

        return _ITEMS.page_of(connection, page, own, missing)

    async def events(self, response_id: str) -> list[bytes] | None:
        """Return the events, or None before the end or for other responses."""
        own = db.response_events.c.response_id == db.storable(response_id)
        query = select(db.response_events.c.content).where(own)
        packed: bytes | None = await self._read(lambda connection: connection.execute(query).scalar())
        if packed is None:
            return None
        return await asyncio.to_thread(
            lambda: msgspec.msgpack.decode(zlib.decompress(packed), type=list[bytes])
        )

    async def purge(self) -> None:
        if self.clock() < self._purge_at_s:
            return
        self._purge_at_s = self.clock() + _PURGE_EVERY_S
        while await self.purge_some():
            pass
        while await self.conversations.purge_some():
            pass


def _change_active(connection: Connection, response_id: str, values: Mapping[str, object]) -> bool:
    active = and_(db.responses.c.id == response_id, db.responses.c.status.in_(_ACTIVE))
    return connection.execute(update(db.responses).where(active).values(**values)).rowcount == 1


def _chain(owner: str, response_id: str) -> CTE:
    link = select(db.responses.c.id, db.responses.c.previous_id).where(db.responses.c.owner == owner)
    chain = link.where(db.responses.c.id == response_id).cte("chain", recursive=True)
    return chain.union_all(link.where(db.responses.c.id == chain.c.previous_id))


def _row(record: ResponseRecord) -> dict[str, object]:
    return {**msgspec.structs.asdict(record), "status": record.status.value}


def _size(record: ResponseRecord, items: Sequence[ItemRecord], turn: ConversationTurn | None) -> int:
    added = 0 if turn is None else turn.num_bytes
    return added + len(record.response) + len(record.written) + sum(len(item.content) for item in items)
