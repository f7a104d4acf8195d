from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import anyio
import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from openai_cpu_server import errors
from openai_cpu_server.api.generation.generation import CascadeAttempt
from openai_cpu_server.api.generation.renderer import ENDED_BY, events
from openai_cpu_server.api.generation.route import (
    EventStream,
    InputTokens,
    event_source,
    not_in_batches,
    while_connected,
)
from openai_cpu_server.api.responses import objects
from openai_cpu_server.api.responses.items import CompactionItem, MessageItem
from openai_cpu_server.api.responses.reader import NO_DATABASE, ResponseParams, ResponseReader
from openai_cpu_server.api.responses.running import Background, LiveResponse, ResponseMaker
from openai_cpu_server.api.responses.schema import InputTokensBody, ResponsesBody
from openai_cpu_server.api.responses.socket import ResponsesExchange
from openai_cpu_server.api.responses.stream import EventNumbers, encoded
from openai_cpu_server.api.state import AppState, check_query_names, page_ends, read_body
from openai_cpu_server.http.body import off_loop, streamed_body
from openai_cpu_server.http.context import RequestContext, context_of
from openai_cpu_server.http.errors import (
    ORDERS,
    PAGE_QUERY,
    ErrorBody,
    ErrorObject,
    json_response,
    page_of,
)
from openai_cpu_server.http.keys import INFERENCE, REQUESTS, WORK
from openai_cpu_server.http.routes import WEBSOCKET, ApiRoute, ApiRouter, model_route
from openai_cpu_server.http.sockets import SocketServer
from openai_cpu_server.jobs import records
from openai_cpu_server.jobs.responses import ResponseRepository
from openai_cpu_server.models.registry import Ability, choose_able, ensure_served
from openai_cpu_server.observe.ended import RequestOrigin

_LISTED, _MAX_LISTED = 20, 100
_POLL_S = 1.0
"""Polls a response of another server."""
_IGNORED = ("include", "include[]", "include_obfuscation")
"""OpenAI's parameters without an effect, because everything is shown."""
_LEFT_BEHIND = "The server that made this response has ended."
_route = partial(ApiRoute, access=REQUESTS, tag="Responses")


class ResponsesRoutes:
    def __init__(self, state: AppState) -> None:
        self._service, self._options = state.generation, state.options
        self._repository = repository = state.jobs.responses if state.jobs else None
        self._background = Background(repository, state.history) if repository else None
        if self._background is not None:
            state.at_end.append(self._background.close)
        self._reader = ResponseReader(repository, self._options, has_mcp=state.mcp is not None)
        self._maker = ResponseMaker(
            state.generation, repository, state.history, state.mcp, state.telemetry.metrics
        )
        self._socket = SocketServer(partial(ResponsesExchange, self._reader, self._maker), state.sockets)

    @model_route(
        "/v1/responses",
        tag="Responses",
        aliases=("/responses",),  # of llama-server
        body=ResponsesBody,
        answer=objects.ResponseObject,
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

    @model_route(
        "/v1/responses/compact",
        tag="Responses",
        body=ResponsesBody,
        answer=objects.CompactedResponse,
        streams=False,
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
        compacted = objects.CompactedResponse(
            id=response.id, created_at=response.created_at, output=(*messages, *summary), usage=response.usage
        )
        return json_response(compacted, headers=dict(running.call.call.headers))

    async def answer(self, data: bytes, context: RequestContext) -> bytes:
        """Store a batch row's response only on demand, because the output file contains it."""
        params = await self._reader.read(data, context.identity, stores_by_default=False)
        for name in ("stream", "background"):
            if getattr(params.body, name):
                raise not_in_batches(name)
        running = await self._maker.begin(params, context)
        try:
            return await running.whole()
        except errors.GenerationFailed:
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
        counted_body, ignored, size = await read_body(InputTokensBody, request)
        body, context = counted_body.as_response(), context_of(request.scope)
        params = await self._reader.of_body(body, ignored, context.owner, size=size)
        allowed = context.identity.allowed_models
        await ensure_served(self._service.models, body.model, allowed)
        chosen = choose_able(self._service.models, body.model, allowed, Ability.GENERATE, adapter=body.lora)
        tools = await self._maker.open_tools(params.body, context.identity)
        if tools is not None:
            await tools.close()
        generation = params.generation(tools.functions if tools is not None else ())
        num_tokens, ignored = await self._service.prompt_tokens(generation, chosen, context)
        return json_response(InputTokens(input_tokens=num_tokens), headers=ignored.headers)

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
        answer=objects.ResponseObject,
        streams=True,
        errors=(400,),
    )
    async def one(self, request: Request) -> ASGIApp:
        """Return a stored response, or the events of a background response."""
        check_query_names(request, "stream", "starting_after", *_IGNORED)
        first, (owner, response_id) = _first_event(request.query_params), owner_and_id(request)
        if first is None:
            return _json(await self._shown(owner, response_id))
        return self._logged_stream(await self._events(owner, response_id, first), {})

    @_route("DELETE", "/v1/responses/{id}", answer=objects.ResponseDeleted)
    async def delete(self, request: Request) -> Response:
        """Delete a stored response."""
        repository, (owner, response_id) = self._require_repository(), owner_and_id(request)
        if (live := self._live(owner, response_id)) is not None:
            await live.cancelled()
        await repository.delete(owner, response_id)
        return json_response(objects.ResponseDeleted(response_id))

    @_route(
        "POST", "/v1/responses/{id}/cancel", access=INFERENCE, answer=objects.ResponseObject, errors=(400,)
    )
    async def cancel(self, request: Request) -> Response:
        """Cancel a background response."""
        repository, (owner, response_id) = self._require_repository(), owner_and_id(request)
        record = await self._record(owner, response_id)
        if not record.is_background:
            raise errors.wrong("Cannot cancel a response that was not created with 'background'.", "id")
        if record.status is records.ResponseStatus.CANCELLED:  # repeating this is allowed
            return _json(record.response)
        if record.status.has_ended:
            raise _has_ended(record.status)
        if (live := self._live(owner, response_id)) is not None:
            await live.cancelled()
            status = records.ResponseStatus(live.response.status)
            if status is not records.ResponseStatus.CANCELLED:  # its own end was faster
                raise _has_ended(status)
            return _json(encoded(live.response))
        ended = objects.cancelled(_object(record), _object(record).output)
        if not await repository.end(_with(record, ended)):
            return _json(await self._shown(owner, response_id))
        return _json(encoded(ended))

    @_route(
        "GET",
        "/v1/responses/{id}/input_items",
        query={**PAGE_QUERY, "order": {"enum": list(ORDERS)}, "include[]": {"type": "string"}},
        answer=objects.ItemList,
    )
    async def input_items(self, request: Request) -> Response:
        """List the input items of a response."""
        items, has_more = await self._require_repository().inputs(*owner_and_id(request), item_page(request))
        return await listed_items(items, has_more=has_more)

    async def _behind(self, request: Request, params: ResponseParams, background: Background) -> ASGIApp:
        """Let the response outlive this request, except during approved calls: a client that leaves then does
        not know its id."""
        context = replace(context_of(request.scope).inner(RequestOrigin.BACKGROUND), timeout_s=None)
        disconnect_guard = partial(while_connected, request.receive)
        running = await self._maker.begin(
            params, context, status=records.ResponseStatus.QUEUED, disconnect_guard=disconnect_guard
        )
        live = LiveResponse(running, context.request_log, context.reservation)
        headers, first = dict(running.call.call.headers), encoded(running.response)
        await background.begin(live)
        if running.call.call.stream:
            return self._logged_stream(live.log.read(0), headers)
        return Response(first, media_type="application/json", headers=headers)

    def _logged_stream(self, stored: AsyncIterator[bytes], headers: Mapping[str, str]) -> ASGIApp:
        return event_source(stored, headers, keep_alive_s=self._options.keep_alive_s)

    def _require_repository(self) -> ResponseRepository:
        if self._repository is None:
            raise errors.JobObjectNotFound(f"Responses are not supported: {NO_DATABASE}.")
        return self._repository

    def _live(self, owner: str, response_id: str) -> LiveResponse | None:
        return self._background.find(owner, response_id) if self._background else None

    async def _shown(self, owner: str, response_id: str) -> bytes:
        if (live := self._live(owner, response_id)) is not None:
            if not records.ResponseStatus(live.response.status).has_ended:
                return encoded(live.response)
            await live.log.ended()  # a client that sees the end may continue it, so it must be stored
        return (await self._record(owner, response_id)).response

    async def _record(self, owner: str, response_id: str) -> records.ResponseRecord:
        """Fail a response whose server has died."""
        repository = self._require_repository()
        record = await repository.get(owner, response_id)
        if not repository.is_left_behind(record):
            return record
        error = ErrorObject(ErrorBody(_LEFT_BEHIND, objects.SERVER_ERROR, None, objects.SERVER_ERROR))
        ended = _with(record, objects.failed(_object(record), _object(record).output, error))
        return ended if await repository.end(ended) else await repository.get(owner, response_id)

    async def _events(self, owner: str, response_id: str, first: int) -> AsyncIterator[bytes]:
        if (live := self._live(owner, response_id)) is not None:
            return live.log.read(first)
        record = await self._record(owner, response_id)
        if not record.is_background:
            raise errors.wrong(
                "Only a response that was created with 'background' can be streamed again.", "stream"
            )
        return self._replayed(record, first)

    async def _replayed(self, record: records.ResponseRecord, first: int) -> AsyncIterator[bytes]:
        """Replay another server's response once it has ended."""
        repository = self._require_repository()
        while not record.status.has_ended:
            await anyio.sleep(_POLL_S)
            record = await self._record(record.owner, record.id)
        stored = await repository.events(record.id)
        if stored is None:  # its server could not write the end
            yield events([EventNumbers(first).event("response.failed", {"response": _object(record)})])
            return
        for event in stored[first:]:
            yield event


def owner_and_id(request: Request) -> tuple[str, str]:
    return context_of(request.scope).owner, request.path_params["id"]


def item_page(request: Request) -> records.PageQuery:
    fields = frozenset({"limit", "after", "order", "include", "include[]"})
    return page_of(request.query_params, names=fields, default=_LISTED, most=_MAX_LISTED)


async def listed_items(
    items: Sequence[records.ItemRecord | records.ConversationItem],
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    has_more: bool,
) -> Response:
    content = [msgspec.Raw(item.content) for item in items]
    page = objects.ItemList(data=content, **page_ends(items), has_more=has_more)
    body = await off_loop(sum(map(len, content)), partial(msgspec.json.encode, page))
    return Response(body, media_type="application/json", headers=dict(headers))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


_response_decoder = msgspec.json.Decoder(objects.ResponseObject)


def _object(record: records.ResponseRecord) -> objects.ResponseObject:
    return _response_decoder.decode(record.response)


def _with(record: records.ResponseRecord, response: objects.ResponseObject) -> records.ResponseRecord:
    status = records.ResponseStatus(response.status)
    return msgspec.structs.replace(record, status=status, response=encoded(response))


def _has_ended(status: records.ResponseStatus) -> errors.InvalidRequest:
    return errors.wrong(f"Cannot cancel a response that is {status.value}.", "id")


def _first_event(query: QueryParams) -> int | None:
    """Return None for the object instead of its stream."""
    after, stream = query.get("starting_after"), query.get("stream", "false")
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 10):
        raise errors.wrong_value("starting_after", "the number of an event")
    if stream not in ("true", "false"):
        raise errors.wrong_value("stream", "'true' or 'false'")
    if stream == "false":
        return None
    return 0 if after is None else int(after) + 1


ROUTER = ApiRouter[AppState](ResponsesRoutes)
