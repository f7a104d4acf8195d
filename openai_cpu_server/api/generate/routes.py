"""Routes of `/generate`, `/v1/generate` and `/v1/generate/batch`, and execution of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generate import render
from openai_cpu_server.api.generate.schema import GenerateBatchBody, GenerateBody
from openai_cpu_server.api.generate.to_params import PromptBatch, generate_params, read_batch
from openai_cpu_server.api.generation import route
from openai_cpu_server.api.model_card import ModelCard, model_card
from openai_cpu_server.api.state import AppState, chosen_model
from openai_cpu_server.http.body import off_loop, streamed_body
from openai_cpu_server.http.context import RequestContext, context_of, served
from openai_cpu_server.http.errors import CLIENT_GONE, error_object, failure_of, json_response
from openai_cpu_server.http.keys import INFERENCE
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, model_route

_AT_ONCE = 64
"""Requests of a batch that are served at once, so that one client does not fill the queue."""
_ITEM_PATH = "/v1/generate"


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
            reading = partial(self.batch.params, GENERATE, index, lenient=self.state.options.lenient)
            params = await off_loop(self.batch.size, reading)
            running = await self.state.generation.begin(params, context)
            answer = await route.whole_answer(running, GENERATE.renderer)
        if request.error is None:
            return render.item_success(answer)
        self.num_failed += 1
        return render.item_failure(
            error_object(request.error, request_id=request_log.id), failure_of(request.error).status
        )


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
        batch = await off_loop(len(data), partial(read_batch, data, self._state.options))
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
