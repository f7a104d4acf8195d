"""An older server's routes over the same way: `/generate`, `/v1/generate`, `/v1/generate/batch`,
`/v1/model/info`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.identity import identity_of
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.rate_limits import RateLimits
from openai_cpu_server.api.calls.call import PRIORITY_HEADER, Asking, Call
from openai_cpu_server.api.calls.disconnect import while_connected
from openai_cpu_server.api.errors import error_object, failure_of
from openai_cpu_server.api.gates.fair_use import unkept_body
from openai_cpu_server.api.gates.ticket import Endings, Ticket, ticket_of
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.generate import GenerateRenderer, answered, batch_bytes, refused
from openai_cpu_server.api.resolve.answer_shape import answer_grammar
from openai_cpu_server.api.resolve.call import resolve_call
from openai_cpu_server.api.resolve.chat import resolve_chat
from openai_cpu_server.api.resolve.output import of_answer
from openai_cpu_server.api.resolve.prompts import completion_prompts
from openai_cpu_server.api.routes.generation import GenerationRoute
from openai_cpu_server.api.routes.models import json_response, model_card
from openai_cpu_server.api.schemas.chat import ChatBody, Message
from openai_cpu_server.api.schemas.completion import CompletionBody
from openai_cpu_server.api.schemas.generate import GenerateBatchBody, GenerateBody
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.parse import Ignored, parse
from openai_cpu_server.api.schemas.structured import ResponseFormat
from openai_cpu_server.errors import BodyTooLarge, InvalidRequest
from openai_cpu_server.models.registry import ModelRegistry

_PREFIX = "gen-"
_AT_ONCE = 64
"""So many requests of a batch are served at once, as of a WebSocket: the queue is not for one client."""
_ITEM_PATH = "/v1/generate"


class GenerateFamily:
    renderer = GenerateRenderer()

    def read(self, data: bytes, *, lenient: bool) -> tuple[GenerateBody, Ignored]:
        return parse(GenerateBody, data, lenient=lenient)

    def resolve(self, body: GenerateBody, asking: Asking) -> Call:
        if (body.n or 1) > 1:
            message = "'n' above 1 is not possible here: an answer has one text."
            raise InvalidRequest(message, param="n", code="invalid_value")
        format_ = _response_format(body)
        is_chat = asking.chosen.model.prompts.has_template and not body.raw
        call = (_chat if is_chat else _completion)(body, format_, asking)
        return msgspec.structs.replace(call, is_json=_is_json(body))


def _response_format(body: GenerateBody) -> ResponseFormat | None:
    """What `format` stands for, where nothing more exact is said."""
    if body.format == "text" and _names_schema(body):
        message = "'format' is 'text', but a JSON schema is given."
        raise InvalidRequest(message, param="format", code="invalid_value")
    if body.format == "json" and not _names_schema(body):
        return ResponseFormat(type="json_object")
    return body.response_format


def _is_json(body: GenerateBody) -> bool:
    return body.format == "json" or _names_schema(body)


def _names_schema(body: GenerateBody) -> bool:
    wanted = body.response_format
    other = wanted is not None and wanted.type != "text"
    return body.json_schema is not None or body.guided_json is not None or other


def _shared(body: GenerateBody, format_: ResponseFormat | None) -> dict[str, object]:
    """The fields that all families have, as the body has them."""
    given = {name: getattr(body, name) for name in GenerationBody.model_fields}
    return {**given, "response_format": format_, "max_tokens": body.max_tokens}


def _chat(body: GenerateBody, format_: ResponseFormat | None, asking: Asking) -> Call:
    said = [Message(role="user", content=body.prompt)]
    chat = ChatBody.model_validate({**_shared(body, format_), "messages": said})
    return resolve_chat(chat, asking, id_prefix=_PREFIX, prompt_param="prompt")


def _completion(body: GenerateBody, format_: ResponseFormat | None, asking: Asking) -> Call:
    model = asking.chosen.model
    text = CompletionBody.model_validate({**_shared(body, format_), "prompt": body.prompt})
    return resolve_call(
        text,
        completion_prompts(text, model.tokenizer, asking.info.context_limit),
        asking,
        of_answer(answer_grammar(text, model.grammars)),
        id_prefix=_PREFIX,
        prompt_param="prompt",
        max_tokens=text.max_tokens,
    )


class Batch(NamedTuple):
    """The requests of one body."""

    shared: Mapping[str, object]
    items: Sequence[Mapping[str, object]]
    ignored: Ignored
    size: int
    """As many bytes as all of it has."""

    def body(self, index: int) -> bytes:
        """The whole request at this index, as if it had come alone. Raises InvalidRequest."""
        fields = {**self.shared, **self.items[index]}
        if fields.get("stream") is True:
            raise _no_stream()
        return json.dumps(fields).encode()


class GenerateBatchRoute:
    """`POST /v1/generate/batch`: each request goes its own way, with its own limits and its own end."""

    def __init__(
        self,
        one: GenerationRoute[GenerateBody],
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

    async def answer(self, data: bytes, identity: Identity, header: str | None, ticket: Ticket) -> bytes:
        """Raises what `api/errors.py` lists."""
        sender = self._one.sender(identity, header=header)
        ticket.priority = sender.announced_priority()
        lease = self._limits.lease(identity.key)
        async with lease:
            return await self._one.whole(await self._one.begin(data, sender, ticket, lease))

    def end(self, ticket: Ticket) -> None:
        self._endings.end(ticket)


class _Work:
    """A batch while it runs. When its client leaves, it is cancelled, and all of its requests with it."""

    def __init__(self, route: GenerateBatchRoute, request: Request, batch: Batch) -> None:
        self._route = route
        self._batch = batch
        self._identity = identity_of(request.scope)
        self._header = request.headers.get(PRIORITY_HEADER)
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
            data = await off_loop(self._batch.size, partial(self._batch.body, index))
            body = await self._route.answer(data, self._identity, self._header, ticket)
            ticket.status = 200
            return answered(body)
        except Exception as error:
            return self._failed(error, ticket)
        finally:
            self._route.end(ticket)

    def _failed(self, error: Exception, ticket: Ticket) -> bytes:
        failure = failure_of(error)
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
    if len(json.dumps(shared)) * len(items) > max_bytes:
        raise BodyTooLarge(max_bytes)
    return Batch(shared, items, ignored, len(data))


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
