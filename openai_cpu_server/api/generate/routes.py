"""Bodies and routes of `/generate`, `/v1/generate` and `/v1/generate/batch`, and conversion to a
`GenerationParams`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal, NamedTuple

import anyio
import msgspec
from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.admin.models import ModelCard, model_card
from openai_cpu_server.api.generate.render import (
    Generated,
    GeneratedBatch,
    GenerateRenderer,
    answered,
    batch_bytes,
    refused,
)
from openai_cpu_server.api.generation.body import GenerationBody, JsonObject, OutputLimit
from openai_cpu_server.api.generation.params import FormParam, GenerationParams, LimitParam, PromptsParam
from openai_cpu_server.api.generation.route import (
    ApiAdapter,
    BodyReader,
    GenerationRoute,
    not_in_batches,
    while_connected,
)
from openai_cpu_server.api.generation.to_params import any_object, generation_ask
from openai_cpu_server.api.parts import AppState, chosen_model
from openai_cpu_server.errors import BodyTooLarge, wrong
from openai_cpu_server.http.body import off_loop, unkept_body
from openai_cpu_server.http.context import RequestContext, context_of, served
from openai_cpu_server.http.errors import CLIENT_GONE, error_object, failure_of, json_response
from openai_cpu_server.http.keys import CALLS, INFERENCE
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Ignored, parse, parse_fields
from openai_cpu_server.http.routes import GENERATION_ERRORS, ApiRoute, ApiRouter

MAX_ITEMS = 1024
"""Default limit of sequences in one call of another family."""
_OLD_NAMES = {"high": "interactive", "normal": "interactive", "low": "batch"}
PriorityName = Annotated[
    Literal["interactive", "batch", "high", "normal", "low"],
    AfterValidator(lambda name: _OLD_NAMES.get(name, name)),
]


class GenerateFields(GenerationBody):
    max_tokens: OutputLimit = None
    format: Literal["text", "json"] | None = None
    """Always JSON with a `json_schema`."""
    raw: bool | None = None
    """True to continue the prompt as text. Otherwise it is a user's message for models that can chat."""
    priority: PriorityName | None = None


class GenerateBody(GenerateFields):
    prompt: Annotated[str, Field(min_length=1)]


class GenerateBatchBody(GenerateFields):
    """Body with exactly one of the lists. Other fields are defaults for each request."""

    prompts: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None = None
    requests: (
        Annotated[list[JsonObject], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None
    ) = None


def generate_ask(body: GenerateBody) -> GenerationParams:
    if (body.n or 1) > 1:
        raise wrong("'n' above 1 is not possible here: an answer has one text.", "n")
    ask = generation_ask(body, PromptsParam([body.prompt], is_said=not body.raw), id_prefix="gen-")
    return msgspec.structs.replace(
        ask,
        form=_form(body, ask.form),
        details=msgspec.structs.replace(ask.details, as_json=body.format == "json" or _names_schema(body)),
        max_tokens=None if body.max_tokens is None else LimitParam(body.max_tokens, "max_tokens"),
    )


def _form(body: GenerateBody, given: FormParam | None) -> FormParam | None:
    names_schema = _names_schema(body)
    if body.format == "text" and names_schema:
        raise wrong("'format' is 'text', but a JSON schema is given.", "format")
    if body.format != "json" or names_schema:
        return given
    if given is not None:
        raise wrong(f"'format' and '{given.path}' cannot be combined: ask for one structure.", given.path)
    return any_object("format")


def _names_schema(body: GenerateBody) -> bool:
    wanted = body.response_format
    other = wanted is not None and wanted.type != "text"
    return body.json_schema is not None or body.guided_json is not None or other


_AT_ONCE = 64
"""Requests of a batch that are served at once, as of a WebSocket, so that one client does not fill the
queue."""
_ITEM_PATH = "/v1/generate"


class PromptBatch(NamedTuple):
    shared: Mapping[str, object]
    items: Sequence[Mapping[str, object]]
    ignored: Ignored
    size: int
    shared_size: int

    def ask(self, index: int, *, lenient: bool) -> GenerationParams:
        """Convert one request as if it had come alone. Raises InvalidRequest."""
        fields = {**self.shared, **self.items[index]}
        if fields.get("stream") is True:
            raise not_in_batches("stream")
        size = self.shared_size + len(str(self.items[index].get("prompt", "")))
        return GENERATE.reader.ask(*parse_fields(GenerateBody, fields, lenient=lenient), num_bytes=size)


class GenerateBatchRoute:
    """Route of `POST /v1/generate/batch`. Each request has its own limits and its own end."""

    def __init__(self, one: GenerationRoute, parts: AppState) -> None:
        self._one = one
        self._parts = parts

    async def create(self, request: Request) -> Response:
        data = await unkept_body(request)
        batch = await off_loop(len(data), partial(_batch, data, self._parts.options))
        del data
        work = _RunningBatch(self._one, self._parts, context_of(request.scope), batch)
        await while_connected(request.receive, work.run)
        return Response(
            batch_bytes(work.results, work.num_failed),
            media_type="application/json",
            headers=batch.ignored.headers,
        )


class _RunningBatch:
    """Live batch, cancelled with all its requests when its client leaves."""

    def __init__(
        self, one: GenerationRoute, parts: AppState, outer: RequestContext, batch: PromptBatch
    ) -> None:
        self._one = one
        self._parts = parts
        self._outer = outer
        self._batch = batch
        self.results = [b""] * len(batch.items)
        self.num_failed = 0

    async def run(self) -> None:
        """Serve at most as many requests at once as the key may have."""
        key = self._outer.identity.key
        most = (key and key.allowance.concurrent) or _AT_ONCE
        waiting = iter(range(len(self._batch.items)))

        async def in_turn() -> None:
            for index in waiting:
                self.results[index] = await self._result(index)

        async with anyio.create_task_group() as group:
            for _ in range(min(_AT_ONCE, most, len(self._batch.items))):
                group.start_soon(in_turn)

    async def _result(self, index: int) -> bytes:
        """Count and log each request by itself, from the arrival of the batch."""
        outer = self._outer.ticket
        ticket = outer.inner(outer.origin, id=f"{outer.id}/{index}", path=_ITEM_PATH)
        ticket.started_s, ticket.client = outer.started_s, self._outer.identity.holder
        answer = b""
        async with served(ticket, self._parts.endings.end) as request:
            ticket.priority = self._outer.sender.announced_priority()
            lease = self._parts.limits.lease(self._outer.identity.key)
            sender, timeout_s = self._outer.sender, self._outer.timeout_s
            context = RequestContext(ticket, sender, lease, timeout_s=timeout_s)
            await request.hold(context)
            answer = await self._answer(index, context)
        if request.error is None:
            return answered(answer)
        self.num_failed += 1
        return refused(error_object(request.error, request_id=ticket.id), failure_of(request.error).status)

    async def _answer(self, index: int, context: RequestContext) -> bytes:
        reading = partial(self._batch.ask, index, lenient=self._parts.options.lenient)
        ask = await off_loop(self._batch.size, reading)
        return await self._one.whole(await self._parts.generation.begin(ask, context))


def _batch(data: bytes, options: ApiOptions) -> PromptBatch:
    """Reject shared fields that would make much work of few bytes. Raises InvalidRequest, BodyTooLarge."""
    body, ignored = parse(GenerateBatchBody, data, lenient=options.lenient)
    if (body.prompts is None) == (body.requests is None):
        raise wrong("Give exactly one of 'prompts' and 'requests'.", "prompts")
    if body.stream:
        raise not_in_batches("stream")
    lists = {"prompts", "requests"}
    shared = body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=lists)
    items: Sequence[Mapping[str, object]] = (
        body.requests if body.prompts is None else [{"prompt": prompt} for prompt in body.prompts]
    ) or ()
    shared_size = len(json.dumps(shared))
    if shared_size * len(items) > options.max_body_bytes:
        raise BodyTooLarge(options.max_body_bytes)
    return PromptBatch(shared, items, ignored, len(data), shared_size)


GENERATE = ApiAdapter(BodyReader(GenerateBody, generate_ask), GenerateRenderer())


class GenerateRoutes:
    def __init__(self, parts: AppState) -> None:
        self.route = GenerationRoute(GENERATE, parts.generation, parts.options)
        self._batch = GenerateBatchRoute(self.route, parts)
        self._models = parts.models

    @ApiRoute(
        "POST",
        "/generate",
        CALLS,
        "Compatibility",
        aliases=("/v1/generate",),
        body=GenerateBody,
        answer=Generated,
        streams=True,
        stream_form="With `stream`: `data: ` and an object with a `text`, and so on; the last has the "
        "`metrics`.",
        errors=GENERATION_ERRORS,
    )
    async def create(self, request: Request) -> ASGIApp:
        """Answer a prompt, in the format of an older server."""
        return await self.route.create(request)

    @ApiRoute(
        "POST",
        "/v1/generate/batch",
        INFERENCE,
        "Compatibility",
        body=GenerateBatchBody,
        answer=GeneratedBatch,
        errors=(429, CLIENT_GONE),
    )
    async def create_batch(self, request: Request) -> Response:
        """Answer several prompts at once. A failure concerns only its own prompt."""
        return await self._batch.create(request)

    @ApiRoute(
        "GET",
        "/v1/model/info",
        INFERENCE,
        "Compatibility",
        query={"model": {"type": "string"}},
        answer=ModelCard,
        errors=(404,),
    )
    async def model_info(self, request: Request) -> Response:
        """Describe the named or the default model, for clients of a server with one model."""
        chosen = await chosen_model(self._models, request, request.query_params.get("model"))
        return json_response(model_card(chosen))


ROOM = ApiRouter[AppState](GenerateRoutes)
