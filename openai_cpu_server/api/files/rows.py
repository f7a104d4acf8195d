"""Rows of batch jobs run in this process, on the very way that HTTP requests go, at batch priority."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import (
    CulpritsLimited,
    DiskFull,
    EngineUnavailable,
    QueueFull,
    StorageFull,
    TokensLimited,
    Unauthorized,
)
from openai_cpu_server.http.context import EndedRequests, RequestContext, Sender, Ticket, new_request_id
from openai_cpu_server.http.errors import error_object, failure_of
from openai_cpu_server.http.key_file import KeyRing
from openai_cpu_server.http.keys import Identity, Key
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.routes import BatchHandler
from openai_cpu_server.jobs.records import NO_LIMITS, StoredAmount
from openai_cpu_server.jobs.run.rows import RowAnswer
from openai_cpu_server.jobs.store.storage import StorageRoom
from openai_cpu_server.observe.ended import RequestOrigin


class RowRunner:
    """A `jobs.rows.RunRow`. A batch job outlives its request: each row asks what its key may do.

    Rows do not count against a key's rate limits, as with OpenAI: they only get what nobody else needs. They
    have a limit of their own, and what they write counts as stored. Where that is used up, they wait.
    """

    def __init__(
        self,
        routes: Mapping[str, BatchHandler],
        *,
        keys: KeyRing,
        limits: RateLimits,
        storage: StorageRoom | None,
        endings: EndedRequests,
    ) -> None:
        self._routes = routes
        self._limits = limits
        self._storage = storage
        self._keys = keys
        self._endings = endings

    async def __call__(self, url: str, body: bytes, owner: str) -> RowAnswer:
        ticket = Ticket(
            new_request_id(),
            "POST",
            url,
            url,
            origin=RequestOrigin.BATCH,
            client=owner or None,
            priority=Priority.BATCH,
        )
        ticket.has_headers = False
        self._endings.row_begins()
        is_over = False
        try:
            answer = await self._answer(ticket, body, owner)
            is_over = answer.retry_after_s is None
        finally:
            self._leave(ticket, is_over=is_over)
        return answer

    async def _answer(self, ticket: Ticket, body: bytes, owner: str) -> RowAnswer:
        try:
            key = self._key_of(owner)
            if self._storage is not None:
                limits = key.allowance.storage if key else NO_LIMITS
                await self._storage.check(owner, limits, StoredAmount(num_bytes=1))
            async with self._limits.row_lease(key) as lease:
                context = RequestContext(ticket, _sender(key), lease)
                answer = await self._routes[ticket.path](body, context)
        except Exception as error:
            return _failed(error, ticket)
        ticket.status = 200
        return RowAnswer(status=200, request_id=ticket.id, body=answer)

    def _leave(self, ticket: Ticket, *, is_over: bool) -> None:
        """A row that is tried again, or that a stop has cut short, has not ended."""
        if is_over:
            self._endings.end(ticket)
        else:
            self._endings.row_put_off()
        self._endings.row_left()

    def _key_of(self, owner: str) -> Key | None:
        """The key of a batch job's owner; None: everything is allowed. Raises Unauthorized."""
        key = self._keys.named(owner)
        if key is None and owner and not self._keys.is_open:
            raise Unauthorized(f"The API key '{owner}' of this batch does not exist any more.")
        return key


def _sender(key: Key | None) -> Sender:
    """The header outranks what a row's body says: it is batch work."""
    return Sender(Identity(key, key.digest.hex() if key else None), Priority.BATCH.label)


def _failed(error: Exception, ticket: Ticket) -> RowAnswer:
    failure = failure_of(error)
    ticket.failed(error)
    ticket.status = failure.status
    again, pauses = _again(error)
    return RowAnswer(
        status=failure.status,
        request_id=ticket.id,
        body=msgspec.json.encode(error_object(error, request_id=ticket.id)),
        retry_after_s=again,
        pauses=pauses,
    )


def _again(error: Exception) -> tuple[float | None, bool]:
    """After how many seconds to try again, and whether no row of its owner can run before."""
    match error:
        case QueueFull() | EngineUnavailable():
            return error.retry_after_s, False
        case TokensLimited(retry_after_s=float(seconds)):
            return seconds, True
        case CulpritsLimited():
            return error.retry_after_s, True
        case StorageFull() | DiskFull():
            return DiskFull.retry_after_s, True
        case _:
            return None, False
