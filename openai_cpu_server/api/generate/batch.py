"""`/v1/generate/batch`, many prompts in one body, and `/v1/model/info`, for a server that had one model."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.identity import identity_of
from openai_cpu_server.api.access.rate_limits import RateLimits
from openai_cpu_server.api.asking.ask import Ask
from openai_cpu_server.api.calls.call import PRIORITY_HEADER
from openai_cpu_server.api.calls.disconnect import while_connected
from openai_cpu_server.api.errors import INTERNAL, error_object, failure_of
from openai_cpu_server.api.gates.fair_use import unkept_body
from openai_cpu_server.api.gates.ticket import Endings, Ticket, ticket_of
from openai_cpu_server.api.generate.as_ask import GENERATE
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.generate import answered, batch_bytes, refused
from openai_cpu_server.api.routes.generation import GenerationRoute
from openai_cpu_server.api.routes.models import json_response, model_card
from openai_cpu_server.api.schemas.generate import GenerateBatchBody, GenerateBody
from openai_cpu_server.api.schemas.parse import Ignored, parse, parse_fields
from openai_cpu_server.errors import BodyTooLarge, InvalidRequest
from openai_cpu_server.models.registry import ModelRegistry

logger = logging.getLogger(__name__)

_AT_ONCE = 64
"""So many requests of a batch are served at once, as of a WebSocket: the queue is not for one client."""
_ITEM_PATH = "/v1/generate"


class Batch(NamedTuple):
    """The requests of one body."""

    shared: Mapping[str, object]
    items: Sequence[Mapping[str, object]]
    ignored: Ignored
    size: int
    """As many bytes as all of it has."""
    shared_size: int

    def ask(self, index: int, *, lenient: bool) -> Ask:
        """What the request at this index asks for, as if it had come alone. Raises InvalidRequest."""
        fields = {**self.shared, **self.items[index]}
        if fields.get("stream") is True:
            raise _no_stream()
        size = self.shared_size + len(str(self.items[index].get("prompt", "")))
        return GENERATE.reader.ask(*parse_fields(GenerateBody, fields, lenient=lenient), num_bytes=size)


class GenerateBatchRoute:
    """`POST /v1/generate/batch`: each request goes its own way, with its own limits and its own end."""

    def __init__(
        self,
        one: GenerationRoute,
        *,
        limits: RateLimits,
        endings: Endings,
        options: ApiOptions,
    ) -> None:
        self._one = one
        self._limits = limits
        self._endings = endings
        self._options = options

    async def create(self, request: Request) -> Response:
        data = await unkept_body(request)
        reading = partial(_batch, data, lenient=self._options.lenient, max_bytes=self._options.max_body_bytes)
        batch = await off_loop(len(data), reading)
        del data
        work = _Work(self, request, batch)
        await while_connected(request.receive, work.run)
        return Response(
            batch_bytes(work.results, work.num_failed),
            media_type="application/json",
            headers=batch.ignored.headers,
        )

    async def answer(self, batch: Batch, index: int, outer: Request, ticket: Ticket) -> bytes:
        """Raises as `GenerationService.begin`, and what the call failed with."""
        identity = identity_of(outer.scope)
        sender = self._one.sender(identity, header=outer.headers.get(PRIORITY_HEADER))
        ticket.priority = sender.announced_priority()
        async with self._limits.lease(identity.key) as lease:
            ask = await off_loop(batch.size, partial(batch.ask, index, lenient=self._options.lenient))
            return await self._one.whole(await self._one.begin_ask(ask, sender, ticket, lease))

    def end(self, ticket: Ticket) -> None:
        self._endings.end(ticket)


class _Work:
    """A batch while it runs. When its client leaves, it is cancelled, and all of its requests with it."""

    def __init__(self, route: GenerateBatchRoute, request: Request, batch: Batch) -> None:
        self._route = route
        self._batch = batch
        self._request = request
        self._identity = identity_of(request.scope)
        self._outer = ticket_of(request.scope)
        self.results = [b""] * len(batch.items)
        self.num_failed = 0

    async def run(self) -> None:
        """Serves no more at once than the key may have."""
        key = self._identity.key
        most = (key and key.allowance.concurrent) or _AT_ONCE
        waiting = iter(range(len(self._batch.items)))

        async def in_turn() -> None:
            for index in waiting:
                self.results[index] = await self._result(index)

        async with anyio.create_task_group() as group:
            for _ in range(min(_AT_ONCE, most, len(self._batch.items))):
                group.start_soon(in_turn)

    async def _result(self, index: int) -> bytes:
        """Requests count and are logged one by one; their time began when the batch came in."""
        ticket = Ticket(f"{self._outer.id}/{index}", "POST", _ITEM_PATH, _ITEM_PATH, trace=self._outer.trace)
        ticket.started_s, ticket.client = self._outer.started_s, self._identity.holder
        ticket.has_headers = False
        try:
            body = await self._route.answer(self._batch, index, self._request, ticket)
            ticket.status = 200
            return answered(body)
        except Exception as error:
            return self._failed(error, ticket)
        finally:
            self._route.end(ticket)

    def _failed(self, error: Exception, ticket: Ticket) -> bytes:
        failure = failure_of(error)
        if failure == INTERNAL:
            logger.error("request %s failed", ticket.id, exc_info=error)
        ticket.failed(error)
        ticket.status = failure.status
        self.num_failed += 1
        return refused(error_object(error, request_id=ticket.id), failure.status)


def _batch(data: bytes, *, lenient: bool, max_bytes: int) -> Batch:
    """Raises InvalidRequest; BodyTooLarge, for what all share must not make much work of few bytes."""
    body, ignored = parse(GenerateBatchBody, data, lenient=lenient)
    if (body.prompts is None) == (body.requests is None):
        message = "Give exactly one of 'prompts' and 'requests'."
        raise InvalidRequest(message, param="prompts", code="invalid_value")
    if body.stream:
        raise _no_stream()
    lists = {"prompts", "requests"}
    shared = body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=lists)
    items: Sequence[Mapping[str, object]] = (
        body.requests if body.prompts is None else [{"prompt": prompt} for prompt in body.prompts]
    ) or ()
    shared_size = len(json.dumps(shared))
    if shared_size * len(items) > max_bytes:
        raise BodyTooLarge(max_bytes)
    return Batch(shared, items, ignored, len(data), shared_size)


def _no_stream() -> InvalidRequest:
    message = "'stream' is not possible in a batch."
    return InvalidRequest(message, param="stream", code="unsupported_value")


class ModelInfoRoute:
    """`GET /v1/model/info`, for a server that had one model."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def info(self, request: Request) -> Response:
        name, allowed = request.query_params.get("model"), identity_of(request.scope).allowed_models
        return json_response(model_card(self._models.choose(name, allowed)))
