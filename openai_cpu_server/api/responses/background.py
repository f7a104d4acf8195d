"""Background responses, which run and record their events until their end, with or without a listener."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from openai_cpu_server.api.generation.renderer import Chunk, events
from openai_cpu_server.api.generation.resumable_streams import EventLog
from openai_cpu_server.api.generation.running import chunks_of
from openai_cpu_server.api.responses.making import RunningResponse
from openai_cpu_server.api.responses.objects import ResponseObject
from openai_cpu_server.errors import JobsUnavailable, RequestCancelled
from openai_cpu_server.http.context import RequestHistory, RequestLog
from openai_cpu_server.http.errors import error_object, failure_of
from openai_cpu_server.http.limits import Reservation
from openai_cpu_server.jobs.responses import RENEW_S, ResponseRepository

logger = logging.getLogger(__name__)
_CLOSE_S = 5.0


class LiveResponse:
    def __init__(self, making: RunningResponse, ticket: RequestLog, lease: Reservation) -> None:
        self.making = making
        self.ticket = ticket
        self.lease = lease
        self.log = EventLog()

    @property
    def response(self) -> ResponseObject:
        return self.making.response

    @property
    def owner(self) -> str:
        return self.making.read.owner

    def cancel(self) -> None:
        self.making.running.cancel()

    async def cancelled(self) -> None:
        """Cancel, and wait until the end is stored, which may be a different end."""
        self.cancel()
        await self.log.ended()


class Background:
    """Runs background responses. The owner must `close` it before the database."""

    def __init__(self, kept: ResponseRepository, endings: RequestHistory) -> None:
        self._kept = kept
        self._endings = endings
        self._live: dict[str, LiveResponse] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, live: LiveResponse) -> None:
        """Store and start the response, even if the client leaves meanwhile. Raises JobsUnavailable."""
        live.lease.keep()
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._see_through(live, stored))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(stored)

    def find(self, owner: str, response_id: str) -> LiveResponse | None:
        live = self._live.get(response_id)
        return live if live is not None and live.owner == owner else None

    async def close(self) -> None:
        """Wait until running responses have stored their end, after the engines have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()

    async def _see_through(self, live: LiveResponse, stored: asyncio.Future[None]) -> None:
        making = live.making
        record = self._kept.leased(making.record(self._kept))
        try:
            await self._kept.add(record, making.inputs())
        except BaseException as error:
            await making.running.__aexit__(None, None, None)
            await live.lease.end()
            stored.set_exception(error)
            return
        self._live[record.id] = live
        stored.set_result(None)
        await self._make(live)

    async def _make(self, live: LiveResponse) -> None:
        making, ticket = live.making, live.ticket
        renewing = asyncio.create_task(self._renew(live))
        try:
            last = await self._told(live)
        finally:
            renewing.cancel()
            await live.lease.end()
            self._endings.end(ticket)
        try:
            told = [*live.log.events, *(events([chunk]) for chunk in last)]
            await self._kept.finish(
                making.record(self._kept), making.outputs(), told, making.turn(making.response)
            )
        except JobsUnavailable as error:
            logger.error("response %s was not stored: %s", making.response.id, error.reason)
        finally:
            live.log.add(last)
            live.log.end()
            del self._live[making.response.id]

    async def _told(self, live: LiveResponse) -> Sequence[Chunk]:
        """The last events are returned, because they wait until the response is stored."""
        stream, ticket = live.making.stream, live.ticket
        try:
            async with live.making.running as running:
                async for said in running.tell(stream):
                    chunks = chunks_of(said, stream)
                    if stream.has_ended:
                        ticket.status = 200
                        return chunks
                    live.log.add(chunks)
        except Exception as error:
            ticket.failed(error)
            ticket.status = failure_of(error).status
            if isinstance(error, RequestCancelled):
                return stream.cancel()
            return stream.error(error_object(error, request_id=ticket.id))
        raise AssertionError("a call tells its end")

    async def _renew(self, live: LiveResponse) -> None:
        """The lease shows other servers that the response is live. A failed renewal means that one of them
        has cancelled it."""
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(JobsUnavailable):
                if not await self._kept.renew(live.making.record(self._kept)):
                    live.cancel()
