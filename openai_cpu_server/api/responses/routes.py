"""Routes of responses, with a WebSocket."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from openai_cpu_server.api.generation.generation import CascadeAttempt
from openai_cpu_server.api.generation.renderer import ENDED_BY
from openai_cpu_server.api.generation.route import EventStream, InputTokens, not_in_batches, while_connected
from openai_cpu_server.api.responses.items import CompactionItem, MessageItem
from openai_cpu_server.api.responses.objects import (
    CompactedResponse,
    ItemList,
    ResponseDeleted,
    ResponseObject,
)
from openai_cpu_server.api.responses.reader import ResponseParams, ResponseReader
from openai_cpu_server.api.responses.running import Background, LiveResponse, ResponseMaker
from openai_cpu_server.api.responses.schema import InputTokensBody, ResponsesBody
from openai_cpu_server.api.responses.socket import ResponsesExchange
from openai_cpu_server.api.responses.stored import StoredResponses, logged_stream
from openai_cpu_server.api.responses.stream import encoded
from openai_cpu_server.api.state import AppState
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.http.body import off_loop, streamed_body
from openai_cpu_server.http.context import RequestContext, context_of
from openai_cpu_server.http.errors import ORDERS, PAGE_QUERY, json_response
from openai_cpu_server.http.keys import CALLS, INFERENCE, REQUESTS, WORK
from openai_cpu_server.http.parse import parse
from openai_cpu_server.http.routes import GENERATION_ERRORS, WEBSOCKET, ApiRoute, ApiRouter
from openai_cpu_server.http.sockets import SocketServer
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.models.registry import Ability, choose_able, ensure_served
from openai_cpu_server.observe.ended import RequestOrigin

_route = partial(ApiRoute, access=REQUESTS, tag="Responses")


class ResponsesRoutes:
    def __init__(self, state: AppState) -> None:
        self._service, self._options = state.generation, state.options
        repository = state.jobs.responses if state.jobs else None
        self._background = Background(repository, state.history) if repository else None
        if self._background is not None:
            state.at_end.append(self._background.close)
        self._reader = ResponseReader(repository, self._options, has_mcp=state.mcp is not None)
        self._maker = ResponseMaker(
            state.generation, self._options, repository, state.history, state.mcp, state.telemetry.metrics
        )
        self._stored = StoredResponses(repository, self._background, self._options)
        self._socket = SocketServer(partial(ResponsesExchange, self._reader, self._maker), state.sockets)

    @_route(
        "POST",
        "/v1/responses",
        access=CALLS,
        aliases=("/responses",),  # of llama-server
        body=ResponsesBody,
        answer=ResponseObject,
        streams=True,
        errors=GENERATION_ERRORS,
        batched=lambda at: at.answer,
    )
    async def create(self, request: Request) -> ASGIApp:
        """Create a response: whole, as server-sent events, or in the background."""
        data, context = await streamed_body(request), context_of(request.scope)
        params = await self._reader.read(data, context.identity)
        if params.body.background and self._background is not None:
            return await self._behind(request, params, self._background)
        attempt = CascadeAttempt(partial(while_connected, request.receive))
        disconnect_guard = partial(while_connected, request.receive)
        running = await self._maker.begin(params, context, attempt, disconnect_guard=disconnect_guard)
        context.body.release()
        if running.call.call.stream:
            keep_alive_s = self._options.keep_alive_s
            return EventStream(running.call, running.stream, keep_alive_s=keep_alive_s, items=running.items())
        body = await while_connected(request.receive, running.whole)
        headers, details = dict(running.call.call.headers), running.response.incomplete_details
        if details is not None and details.ended_by:
            headers[ENDED_BY] = details.ended_by
        return Response(body, media_type="application/json", headers=headers)

    @_route(WEBSOCKET, "/v1/responses", access=INFERENCE)
    async def socket(self, websocket: WebSocket) -> None:
        """Serve OpenAI's WebSocket mode: `response.create` in, the events of a stream out."""
        await self._socket.serve(websocket)

    @_route(
        "POST",
        "/v1/responses/compact",
        access=CALLS,
        body=ResponsesBody,
        answer=CompactedResponse,
        errors=GENERATION_ERRORS,
    )
    async def compact(self, request: Request) -> Response:
        """Compact a conversation: keep the user's messages, and summarize all else."""
        data, context = await streamed_body(request), context_of(request.scope)
        params = await self._reader.read(data, context.identity, is_compacting=True)
        running = await self._maker.begin(params, context)
        context.body.release()
        await while_connected(request.receive, running.whole)
        response, (*items, _) = running.response, (one.item for one in (*params.earlier, *params.items))
        messages = [item for item in items if isinstance(item, MessageItem) and item.role == "user"]
        summary = [item for item in response.output if isinstance(item, CompactionItem)]
        compacted = CompactedResponse(
            id=response.id, created_at=response.created_at, output=(*messages, *summary), usage=response.usage
        )
        return json_response(compacted, headers=dict(running.call.call.headers))

    async def answer(self, data: bytes, context: RequestContext) -> bytes:
        """Answer a batch row. It is stored only on demand, because the output file contains it."""
        params = await self._reader.read(data, context.identity, stores_by_default=False)
        for name in ("stream", "background"):
            if getattr(params.body, name):
                raise not_in_batches(name)
        running = await self._maker.begin(params, context)
        try:
            return await running.whole()
        except GenerationFailed:
            running.call.model.loaded()  # an engine that is gone takes its requests with it
            raise

    @_route(
        "POST",
        "/v1/responses/input_tokens",
        access=WORK,
        body=InputTokensBody,
        answer=InputTokens,
        errors=(404, 503),
    )
    async def input_tokens(self, request: Request) -> Response:
        """Count the prompt tokens of a response."""
        data = await streamed_body(request)
        reading = partial(parse, InputTokensBody, data, lenient=self._options.lenient)
        counted_body, ignored = await off_loop(len(data), reading)
        body, context = counted_body.as_response(), context_of(request.scope)
        params = await self._reader.of_body(body, ignored, context.owner, size=len(data))
        allowed = context.identity.allowed_models
        await ensure_served(self._service.models, body.model, allowed)
        chosen = choose_able(self._service.models, body.model, allowed, Ability.GENERATE, adapter=body.lora)
        tools = await self._maker.open_tools(params.body, context.identity)
        if tools is not None:
            await tools.close()
        generation = params.generation(tools.functions if tools is not None else ())
        counted = await self._service.prompt_tokens(generation, chosen, context)
        return json_response(InputTokens(input_tokens=counted.num_tokens), headers=counted.ignored.headers)

    @_route(
        "GET",
        "/v1/responses/{id}",
        query={
            "stream": {"type": "boolean", "default": False},
            "starting_after": {
                "type": "integer",
                "description": "number of the last event that the client has",
            },
            "include[]": {"type": "string", "description": "has no effect: all fields are returned"},
            "include_obfuscation": {"type": "boolean", "description": "changes nothing"},
        },
        answer=ResponseObject,
        streams=True,
        errors=(400,),
    )
    async def one(self, request: Request) -> ASGIApp:
        """Return a stored response, or the events of a background response."""
        return await self._stored.one(request)

    @_route("DELETE", "/v1/responses/{id}", answer=ResponseDeleted)
    async def delete(self, request: Request) -> Response:
        """Delete a stored response."""
        return await self._stored.delete(request)

    @_route("POST", "/v1/responses/{id}/cancel", access=INFERENCE, answer=ResponseObject, errors=(400,))
    async def cancel(self, request: Request) -> Response:
        """Cancel a background response."""
        return await self._stored.cancel(request)

    @_route(
        "GET",
        "/v1/responses/{id}/input_items",
        query={**PAGE_QUERY, "order": {"enum": list(ORDERS)}, "include[]": {"type": "string"}},
        answer=ItemList,
    )
    async def input_items(self, request: Request) -> Response:
        """List the input items of a response."""
        return await self._stored.input_items(request)

    async def _behind(self, request: Request, params: ResponseParams, background: Background) -> ASGIApp:
        """The response outlives this request, except while approved calls are made: a client that leaves
        then does not know its id. The server's limit of time does not apply."""
        outer = context_of(request.scope)
        request_log = outer.request_log.inner(RequestOrigin.BACKGROUND)
        request_log.client = outer.request_log.client
        assert outer.reservation is not None, "its route is metered"
        context = RequestContext(request_log, outer.caller, outer.reservation)
        disconnect_guard = partial(while_connected, request.receive)
        running = await self._maker.begin(
            params, context, status=ResponseStatus.QUEUED, disconnect_guard=disconnect_guard
        )
        live = LiveResponse(running, request_log, outer.reservation)
        headers, first = dict(running.call.call.headers), encoded(running.response)
        await background.begin(live)
        if running.call.call.stream:
            return logged_stream(live.log.read(0), headers, keep_alive_s=self._options.keep_alive_s)
        return Response(first, media_type="application/json", headers=headers)


ROUTER = ApiRouter[AppState](ResponsesRoutes)
