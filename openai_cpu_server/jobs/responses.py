"""Stored responses as the API uses them: kept for a time, and those of dead processes seen as such."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Sequence

import msgspec

from openai_cpu_server.jobs.records import ItemRecord, Link, Page, ResponseRecord
from openai_cpu_server.jobs.store.lease import has_died, new_holder
from openai_cpu_server.jobs.store.responses import ResponseStore
from openai_cpu_server.jobs.store.storage import Storage
from openai_cpu_server.storage.database import Database, DatabaseThreads

_PURGE_EVERY_S = 600.0
RENEW_S = 5.0
"""A process that runs a background response says so in this interval."""
_LEASE_S = 30.0
"""After so many seconds without a sign of life, a response of another machine counts as left behind."""


class ResponseShelf:
    """An `owner` sees only its own responses: anything else raises JobObjectNotFound."""

    def __init__(
        self,
        database: Database,
        threads: DatabaseThreads,
        storage: Storage,
        *,
        lifetime_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = ResponseStore(database)
        self._threads = threads
        self.storage = storage
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._holder = new_holder()
        self._purge_at_s = 0.0

    def leased(self, record: ResponseRecord) -> ResponseRecord:
        """The record of a response that this process begins to run."""
        return msgspec.structs.replace(
            record, lease_holder=self._holder, lease_until=self._clock() + _LEASE_S
        )

    def is_left_behind(self, record: ResponseRecord) -> bool:
        """Whether nobody runs it any more, though it has not ended."""
        if record.status.has_ended or record.lease_holder is None:
            return False
        is_late = record.lease_until is not None and record.lease_until < self._clock()
        return is_late or has_died(record.lease_holder)

    def expiry(self, created_at: int) -> int:
        return created_at + int(self._lifetime_s)

    async def add(self, record: ResponseRecord, items: Sequence[ItemRecord]) -> None:
        await self._purge()
        await self._threads.write(self._store.add, record, items)
        self.storage.grew(record.owner, _size(record, items))

    async def finish(
        self, record: ResponseRecord, outputs: Sequence[ItemRecord], events: Sequence[bytes]
    ) -> bool:
        """Store the end of a background response. False if it has ended otherwise or is deleted."""
        packed = await asyncio.to_thread(_packed, events)
        self.storage.grew(record.owner, _size(record, outputs) + len(packed))
        return await self._threads.write(self._store.finish, record, outputs, packed)

    async def end(self, record: ResponseRecord) -> bool:
        """Store an end that did not come by itself. False: it has ended before."""
        return await self._threads.write(self._store.end, record)

    async def get(self, owner: str, response_id: str) -> ResponseRecord:
        return await self._threads.read(self._store.get, owner, storable(response_id), self._clock())

    async def chain(self, owner: str, response_id: str, *, max_bytes: int) -> list[Link]:
        """A response and all that it goes on from, the oldest first. Raises InvalidRequest if it is long."""
        known, now_s = storable(response_id), self._clock()
        return await self._threads.read(self._store.chain, owner, known, now_s, max_bytes=max_bytes)

    async def inputs(self, owner: str, response_id: str, page: Page) -> tuple[list[ItemRecord], bool]:
        """One page of what went into a response, and whether there is more."""
        known = msgspec.structs.replace(page, after=None if page.after is None else storable(page.after))
        return await self._threads.read(
            self._store.inputs, owner, storable(response_id), known, self._clock()
        )

    async def items(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Items of any of its responses, as far as they are there."""
        return await self._threads.read(self._store.items, owner, [*map(storable, ids)], self._clock())

    async def events(self, response_id: str) -> list[bytes] | None:
        """The stream of a background response; None: it has none, or has not ended."""
        packed = await self._threads.read(self._store.events, storable(response_id))
        return None if packed is None else await asyncio.to_thread(_unpacked, packed)

    async def renew(self, record: ResponseRecord) -> bool:
        """Say that it is still being run, and how it looks. False if somebody has ended or deleted it."""
        return await self._threads.write(
            self._store.renew,
            record.id,
            until_s=self._clock() + _LEASE_S,
            status=record.status,
            response=record.response,
        )

    async def delete(self, owner: str, response_id: str) -> None:
        await self._threads.write(self._store.delete, owner, storable(response_id), self._clock())
        self.storage.changed(owner)

    async def _purge(self) -> None:
        """Delete what has expired, now and then."""
        now_s = self._clock()
        if now_s < self._purge_at_s:
            return
        self._purge_at_s = now_s + _PURGE_EVERY_S
        while await self._threads.write(self._store.purge, now_s):
            pass


def _size(record: ResponseRecord, items: Sequence[ItemRecord]) -> int:
    return len(record.response) + len(record.written) + sum(len(item.content) for item in items)


def _packed(events: Sequence[bytes]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(events))


def _unpacked(packed: bytes) -> list[bytes]:
    return msgspec.msgpack.decode(zlib.decompress(packed), type=list[bytes])


def storable(text: str) -> str:
    """The text without NUL, which PostgreSQL cannot store; no id of ours has one."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
