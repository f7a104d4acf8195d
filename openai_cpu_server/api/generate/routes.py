"""Bodies, routes and conversion of `/generate`, `/v1/generate` and `/v1/generate/batch`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, NamedTuple

import anyio
import msgspec
from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.admin.models import ModelCard, model_card
from openai_cpu_server.api.generate import render
from openai_cpu_server.api.generation import route
from openai_cpu_server.api.generation.params import GenerationParams, JsonObject, LimitParam, PromptsParam
from openai_cpu_server.api.generation.schema import GenerationBody, OutputLimit
from openai_cpu_server.api.generation.to_params import any_object, generation_params
from openai_cpu_server.api.state import AppState, chosen_model
from openai_cpu_server.errors import BodyTooLarge, wrong
from openai_cpu_server.http.body import off_loop, streamed_body
from openai_cpu_server.http.context import RequestContext, context_of, served
from openai_cpu_server.http.errors import CLIENT_GONE, error_object, failure_of, json_response
from openai_cpu_server.http.keys import INFERENCE
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Ignored, parse, parse_fields
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, model_route

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


def generate_params(body: GenerateBody) -> GenerationParams:
    if (body.n or 1) > 1:
        raise wrong("'n' above 1 is not supported here: an answer has one text.", "n")
    prompt = PromptsParam([body.prompt], is_user_message=not body.raw)
    params = generation_params(body, prompt, id_prefix="gen-")
    response_format = body.response_format
    has_format = response_format is not None and response_format.type != "text"
    names_schema = has_format or body.json_schema is not None or body.guided_json is not None
    form = params.form
    if body.format == "text" and names_schema:
        raise wrong("'format' is 'text', but a JSON schema is given.", "format")
    if body.format == "json" and not names_schema:
        if form is not None:
            raise wrong(f"'format' and '{form.path}' cannot be combined: ask for one structure.", form.path)
        form = any_object("format")
    as_json = body.format == "json" or names_schema
    return msgspec.structs.replace(
        params,
        form=form,
        details=msgspec.structs.replace(params.details, as_json=as_json),
        max_tokens=None if body.max_tokens is None else LimitParam(body.max_tokens, "max_tokens"),
    )


_AT_ONCE = 64
"""Requests of a batch that are served at once, so that one client does not fill the queue."""
_ITEM_PATH = "/v1/generate"


class PromptBatch(NamedTuple):
    shared: Mapping[str, object]
    items: Sequence[Mapping[str, object]]
    ignored: Ignored
    size: int
    shared_size: int

    def params(self, index: int, *, lenient: bool) -> GenerationParams:
        """Convert one request as if it had come alone. Raises InvalidRequest."""
        fields = {**self.shared, **self.items[index]}
        if fields.get("stream") is True:
            raise route.not_in_batches("stream")
        size = self.shared_size + len(str(self.items[index].get("prompt", "")))
        return GENERATE.convert(*parse_fields(GenerateBody, fields, lenient=lenient), num_bytes=size)


@dataclass
class _RunningBatch:
    """Live batch, cancelled when its client leaves. Each request has its own limits and its own end."""

    state: AppState
    outer: RequestContext
    batch: PromptBatch
    num_failed: int = 0

    def __post_init__(self) -> None:
        self.results = [b""] * len(self.batch.items)

    async def run(self) -> None:
        """Serve at most as many requests at once as the key may have."""
        key = self.outer.identity.key
        most = (key and key.allowance.concurrent) or _AT_ONCE
        waiting = iter(range(len(self.batch.items)))

        async def in_turn() -> None:
            for index in waiting:
                self.results[index] = await self._result(index)

        async with anyio.create_task_group() as group:
            for _ in range(min(_AT_ONCE, most, len(self.batch.items))):
                group.start_soon(in_turn)

    async def _result(self, index: int) -> bytes:
        """Count and log each request by itself, from the arrival of the batch."""
        outer, log = self.outer, self.outer.request_log
        inner = outer.inner(log.origin, id=f"{log.id}/{index}", path=_ITEM_PATH)
        context = replace(inner, reservation=self.state.limits.reservation(outer.identity.key))
        request_log, answer = context.request_log, b""
        request_log.started_s = log.started_s
        async with served(request_log, self.state.history.end) as request:
            request_log.priority = outer.caller.announced_priority()
            await request.hold(context)
            reading = partial(self.batch.params, index, lenient=self.state.options.lenient)
            params = await off_loop(self.batch.size, reading)
            running = await self.state.generation.begin(params, context)
            answer = await route.whole_answer(running, GENERATE.renderer)
        if request.error is None:
            return render.item_success(answer)
        self.num_failed += 1
        return render.item_failure(
            error_object(request.error, request_id=request_log.id), failure_of(request.error).status
        )


def _batch(data: bytes, options: ApiOptions) -> PromptBatch:
    """Reject shared fields that would make much work of few bytes. Raises InvalidRequest, BodyTooLarge."""
    body, ignored = parse(GenerateBatchBody, data, lenient=options.lenient)
    if (body.prompts is None) == (body.requests is None):
        raise wrong("Give exactly one of 'prompts' and 'requests'.", "prompts")
    if body.stream:
        raise route.not_in_batches("stream")
    lists = {"prompts", "requests"}
    shared = body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=lists)
    items: Sequence[Mapping[str, object]] = (
        body.requests if body.prompts is None else [{"prompt": prompt} for prompt in body.prompts]
    ) or ()
    shared_size = len(json.dumps(shared))
    if shared_size * len(items) > options.max_body_bytes:
        raise BodyTooLarge(options.max_body_bytes)
    return PromptBatch(shared, items, ignored, len(data), shared_size)


GENERATE = route.ApiAdapter(GenerateBody, generate_params, render.GenerateRenderer())


class GenerateRoutes:
    def __init__(self, state: AppState) -> None:
        self.route = route.GenerationRoute(GENERATE, state.generation)
        self._state = state

    @model_route(
        "/generate",
        tag="Compatibility",
        aliases=("/v1/generate",),
        body=GenerateBody,
        answer=render.Generated,
        stream_form="With `stream`: `data: ` and an object with a `text`, and so on; the last has the "
        "`metrics`.",
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
        answer=render.GeneratedBatch,
        errors=(429, CLIENT_GONE),
    )
    async def create_batch(self, request: Request) -> Response:
        """Answer several prompts at once. A failure concerns only its own prompt."""
        data = await streamed_body(request)
        batch = await off_loop(len(data), partial(_batch, data, self._state.options))
        del data
        work = _RunningBatch(self._state, context_of(request.scope), batch)
        await route.while_connected(request.receive, work.run)
        body = render.batch_bytes(work.results, work.num_failed)
        return Response(body, media_type="application/json", headers=batch.ignored.headers)

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
        chosen = await chosen_model(self._state.models, request, request.query_params.get("model"))
        return json_response(model_card(chosen))


ROUTER = ApiRouter[AppState](GenerateRoutes)
