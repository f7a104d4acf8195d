"""`/v1/batches`: jobs of many requests, whose rows run as HTTP requests do, at batch priority."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.generation.body import Notes
from openai_cpu_server.api.parts import AppState, ListPage, page_ends
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
from openai_cpu_server.http.body import off_loop, small_body
from openai_cpu_server.http.clients import works_for
from openai_cpu_server.http.context import (
    Caller,
    RequestContext,
    RequestHistory,
    RequestLog,
    context_of,
    new_request_id,
)
from openai_cpu_server.http.errors import PAGE_QUERY, error_object, failure_of, json_response, page_of
from openai_cpu_server.http.key_file import KeyRing
from openai_cpu_server.http.keys import INFERENCE, VISITOR, Identity, Key
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Body, parse
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, BatchHandler
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import NO_LIMITS, BatchRecord, LineError, StoredAmount
from openai_cpu_server.jobs.run.rows import RowAnswer
from openai_cpu_server.jobs.store.storage import StorageRoom
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.ended import RequestOrigin


class RowRunner:
    """Implements `jobs.rows.RunRow`. A batch outlives its request, so each row checks the current key.
    Rows do not count against rate limits, as at OpenAI, because they only use spare capacity. Beyond their
    own limit, or that of stored bytes, they wait."""

    def __init__(
        self,
        routes: Mapping[str, BatchHandler],
        *,
        keys: KeyRing,
        limits: RateLimits,
        storage: StorageRoom | None,
        endings: RequestHistory,
    ) -> None:
        self._routes = routes
        self._limits = limits
        self._storage = storage
        self._keys = keys
        self._endings = endings

    async def __call__(self, url: str, body: bytes, owner: str) -> RowAnswer:
        ticket = RequestLog(
            new_request_id(),
            "POST",
            url,
            url,
            origin=RequestOrigin.BATCH,
            client=owner or None,
            priority=Priority.BATCH,
            has_headers=False,
        )
        self._endings.row_begins()
        is_over = False
        try:
            answer = await self._answer(ticket, body, owner)
            is_over = answer.retry_after_s is None
        finally:
            if is_over:
                self._endings.end(ticket)
            else:  # it is tried again, or a stop has cut it short
                self._endings.row_put_off()
            self._endings.row_left()
        return answer

    async def _answer(self, ticket: RequestLog, body: bytes, owner: str) -> RowAnswer:
        try:
            key = self._key_of(owner)
            if self._storage is not None:
                limits = key.allowance.storage if key else NO_LIMITS
                await self._storage.check(owner, limits, StoredAmount(num_bytes=1))
            async with self._limits.row_lease(key) as lease:
                context = RequestContext(ticket, _sender(key), lease)
                works_for(context.identity)
                answer = await self._routes[ticket.path](body, context)
        except Exception as error:
            return _failed(error, ticket)
        ticket.status = 200
        return RowAnswer(status=200, request_id=ticket.id, body=answer)

    def _key_of(self, owner: str) -> Key | None:
        key = self._keys.named(owner)
        if key is None and owner and not self._keys.is_open:
            raise Unauthorized(f"The API key '{owner}' of this batch does not exist any more.")
        return key


def _sender(key: Key | None) -> Caller:
    """The priority header overrides the row's body."""
    # On a server without keys nobody knows any more from which machine the batch came.
    return Caller(Identity(key or VISITOR, key.digest.hex() if key else None), Priority.BATCH.label)


def _failed(error: Exception, ticket: RequestLog) -> RowAnswer:
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
    """Return the seconds until the next try, and True if all rows of the owner must wait."""
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


Lifetime = Annotated[int, Field(ge=3600, le=2592000)]
"""Seconds: an hour to 30 days."""


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Lifetime


class BatchBody(Body):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Notes | None = None
    output_expires_after: ExpiresAfter | None = None


_LISTED, _MAX_LISTED = 20, 100


class RequestCounts(msgspec.Struct, frozen=True):
    total: int
    completed: int
    failed: int


class BatchErrors(msgspec.Struct, frozen=True):
    data: list[LineError]
    object: str = "list"


class BatchInputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class BatchOutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over committed rows that did not fail."""

    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails = BatchOutputDetails()
    total_tokens: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "batch"
    endpoint: str
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(ListPage[BatchObject], frozen=True, kw_only=True):
    pass


class BatchJobRoutes:
    def __init__(self, jobs: Jobs, models: ModelRegistry, options: ApiOptions) -> None:
        self._jobs = jobs
        self._models = models
        self._lenient = options.lenient

    async def create(self, request: Request) -> Response:
        self._models.check_not_ending()
        data, context = await small_body(request), context_of(request.scope)
        body, ignored = await off_loop(len(data), partial(parse, BatchBody, data, lenient=self._lenient))
        lifetime = body.output_expires_after
        batch = await self._jobs.create_batch(
            context.owner,
            input_file_id=body.input_file_id,
            endpoint=body.endpoint,
            completion_window=body.completion_window,
            metadata=body.metadata,
            output_lifetime_s=lifetime.seconds if lifetime else None,
            limits=context.identity.storage,
        )
        return json_response(_batch_object(batch), headers=ignored.headers)

    async def list(self, request: Request) -> Response:
        known = frozenset({"limit", "after"})
        page = page_of(request.query_params, known=known, default=_LISTED, most=_MAX_LISTED)
        batches, has_more = await self._jobs.batches.page(context_of(request.scope).owner, page)
        listed = [*map(_batch_object, batches)]
        return json_response(BatchList(data=listed, **page_ends(batches), has_more=has_more))

    async def one(self, request: Request) -> Response:
        return json_response(_batch_object(await self._jobs.batches.get(*_named(request))))

    async def cancel(self, request: Request) -> Response:
        return json_response(_batch_object(await self._jobs.cancel_batch(*_named(request))))


def _named(request: Request) -> tuple[str, str]:
    return context_of(request.scope).owner, request.path_params["id"]


def _batch_object(batch: BatchRecord) -> BatchObject:
    alike = {name: getattr(batch, name) for name in BatchObject.__struct_fields__ if hasattr(batch, name)}
    usage = BatchUsage(
        input_tokens=batch.input_tokens,
        input_tokens_details=BatchInputDetails(batch.cached_tokens),
        output_tokens=batch.output_tokens,
        total_tokens=batch.input_tokens + batch.output_tokens,
    )
    changed = {
        "errors": BatchErrors(batch.errors) if batch.errors else None,
        "status": batch.status.value,
        "request_counts": RequestCounts(batch.total, batch.completed, batch.failed),
        "usage": usage,
    }
    return BatchObject(**{**alike, **changed})


_row = partial(ApiRoute[BatchJobRoutes], access=INFERENCE, tag="Batches")
_rows = (
    _row(
        "POST",
        "/v1/batches",
        lambda at: at.create,
        summary="Run a file's requests when nobody else needs the machine",
        body=BatchBody,
        answer=BatchObject,
        errors=(404,),
    ),
    _row(
        "GET",
        "/v1/batches",
        lambda at: at.list,
        summary="Batches",
        query=PAGE_QUERY,
        answer=BatchList,
        errors=(404,),
    ),
    _row("GET", "/v1/batches/{id}", lambda at: at.one, summary="One batch", answer=BatchObject),
    _row(
        "POST",
        "/v1/batches/{id}/cancel",
        lambda at: at.cancel,
        summary="End it",
        answer=BatchObject,
        errors=(409,),
    ),
)
ROOM = ApiRouter[AppState, BatchJobRoutes](
    lambda parts: BatchJobRoutes(parts.jobs, parts.models, parts.options) if parts.jobs is not None else None,
    _rows,
)
