from __future__ import annotations

import contextlib
import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server import errors
from openai_cpu_server.api.generation.resumable_streams import (
    LAST_EVENT_HEADER,
    ResumableStream,
    StreamState,
    events_lost,
)
from openai_cpu_server.api.generation.route import resumable_response
from openai_cpu_server.api.generation.running import OpenCall
from openai_cpu_server.api.state import AppState, check_query_names, read_body, response_of
from openai_cpu_server.contract.engine import LiveRequest
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import INFERENCE, Client, Identity
from openai_cpu_server.http.parse import Body
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, JsonSchema


class RequestCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """`chatcmpl-123/0`: API object and number of the sequence."""
    object: str = "request"
    priority: str
    state: str
    prompt_tokens: int
    output_tokens: int
    age_s: float
    client: str
    """Name of the API key, else the body's `user`, else part of a key's digest. Administrators also see the
    address."""
    position: int | None
    """Counts from 1, near the head alone."""
    first_token_ms: float | None
    """Estimate from now, if there is a position. Embeddings: until the first vector."""
    inputs: int | None
    """Texts to embed or score. None if it generates."""
    inputs_done: int | None


class RequestList(msgspec.Struct, frozen=True):
    data: list[RequestCard]
    object: str = "list"


class Cancelled(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "request"


class ControlAction(enum.Enum):
    STOP = "stop"
    STOP_THINKING = "stop_thinking"
    REASONING_END = "reasoning_end"

    def on(self, running: OpenCall) -> None:
        if self is ControlAction.STOP:
            running.stop()
        else:
            running.stop_thinking()


_ACTIONS = [action.value for action in ControlAction]


def _control_action(name: str) -> ControlAction:
    if name not in _ACTIONS:
        raise PydanticCustomError("action", f"Input should be one of {', '.join(map(repr, _ACTIONS))}")
    return ControlAction(name)


Action = Annotated[
    ControlAction, BeforeValidator(_control_action), WithJsonSchema({"type": "string", "enum": _ACTIONS})
]


class ControlBody(Body):
    action: Action


class LlamaControlBody(ControlBody):
    id: str
    model: str | None = None


class Controlled(msgspec.Struct, frozen=True):
    id: str
    action: str
    object: str = "chat.completion.control"


class LlamaControlled(msgspec.Struct, frozen=True, omit_defaults=True):
    """llama-server reports a wrong id without an error status."""

    success: Annotated[bool, msgspec.Meta(description="otherwise `message` has the reason")]
    message: str = ""


class DeletedAnswer(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "chat.completion.deleted"


class LookupBody(Body):
    conversation_ids: Annotated[list[str], Field(max_length=1000, fail_fast=True)]


_route = partial(ApiRoute, access=INFERENCE, tag="Requests")
_CONVERSATION: Mapping[str, JsonSchema] = {
    "conv_id": {"type": "string", "description": "the client's name for it"}
}
_stream = partial(_route, "GET", streams=True, media="text/event-stream")
_STREAMS = list[StreamState]  # in the class `list` is a route


class RequestRoutes:
    def __init__(self, state: AppState) -> None:
        self._models = state.models
        self._calls = state.generation.calls
        self._streams = state.generation.streams
        self._metrics = state.telemetry.metrics
        self._keep_alive_s = state.options.keep_alive_s

    @_route("GET", "/v1/requests", answer=RequestList)
    async def list(self, request: Request) -> Response:
        """List the running and waiting requests of the caller's key, or all for an administrator."""
        identity = context_of(request.scope).identity
        return json_response(RequestList([_card(live, identity) for live in self._visible(identity)]))

    @_route("DELETE", "/v1/requests/{id:path}", answer=Cancelled)
    async def cancel(self, request: Request) -> Response:
        """Cancel a call, by its id or that of one of its sequences."""
        name: str = request.path_params["id"]
        visible = self._visible(context_of(request.scope).identity)
        if not any(name in (live.id, live.id.partition("/")[0]) for live in visible):
            raise errors.RequestNotFound(name)
        for model in self._models:
            model.engine.cancel(name)
        return json_response(Cancelled(name))

    @_route("POST", "/v1/chat/completions/{id}/control", body=ControlBody, answer=Controlled, errors=(409,))
    async def control(self, request: Request) -> Response:
        """End a running answer, or only its reasoning."""
        body, ignored, _ = await read_body(ControlBody, request)
        name: str = request.path_params["id"]
        body.action.on(self._calls.find(name, context_of(request.scope).identity))
        return json_response(Controlled(name, body.action.value), headers=ignored.headers)

    @_route("POST", "/v1/chat/completions/control", body=LlamaControlBody, answer=LlamaControlled)
    async def control_as_llama_server(self, request: Request) -> Response:
        """End a running answer or its reasoning, in llama-server's format."""
        body, ignored, _ = await read_body(LlamaControlBody, request)
        answer = LlamaControlled(success=True)
        try:
            body.action.on(self._calls.find(body.id, context_of(request.scope).identity))
        except (errors.RequestNotFound, errors.RequestEnded, errors.NotThinking) as error:
            answer = LlamaControlled(success=False, message=str(error))
        return json_response(answer, headers=ignored.headers)

    @_route("DELETE", "/v1/chat/completions/{id}", answer=DeletedAnswer, errors=(409,))
    async def stop(self, request: Request) -> Response:
        """Stop a running answer, or forget the stream of one that has ended."""
        name, identity = request.path_params["id"], context_of(request.scope).identity
        try:
            stream = self._streams.find(name, identity)
        except errors.RequestNotFound:
            self._calls.find(name, identity).stop()
        else:
            if stream.log.has_ended:
                self._streams.forget(stream)
            else:
                stream.running.stop()
        return json_response(DeletedAnswer(name))

    @_stream(
        "/v1/chat/completions/{id}/stream",
        query={"starting_after": {"type": "string", "description": "as the header `Last-Event-ID`"}},
        errors=(400,),
    )
    async def stream(self, request: Request) -> ASGIApp:
        """Resume a stream that continues without its client."""
        check_query_names(request, "starting_after")
        last = request.headers.get(LAST_EVENT_HEADER) or request.query_params.get("starting_after")
        stream = self._streams.find(request.path_params["id"], context_of(request.scope).identity)
        return self._resumed(stream, stream.log.read(stream.number_behind(last)))

    @_stream(
        "/v1/stream",
        query={**_CONVERSATION, "from": {"type": "integer", "description": "bytes that are known"}},
        errors=(400, 404),
    )
    async def stream_as_llama_server(self, request: Request) -> ASGIApp:
        """Resume a stream, in llama-server's format."""
        check_query_names(request, "conv_id", "from")
        start = request.query_params.get("from", "0")
        if not (start.isascii() and start.isdecimal() and len(start) < 12):
            raise errors.wrong_value("from", "a number of bytes")
        stream = self._streams.find(self._conversation(request), context_of(request.scope).identity)
        if not stream.log.has_byte(int(start)):
            raise events_lost("from")
        return self._resumed(stream, stream.log.read_bytes(int(start)))

    @_route("DELETE", "/v1/stream", query=_CONVERSATION, status=204, errors=(400,))
    async def forget_as_llama_server(self, request: Request) -> Response:
        """Stop a stream that continues without its client, and forget it."""
        check_query_names(request, "conv_id")
        with contextlib.suppress(errors.RequestNotFound):
            stream = self._streams.find(self._conversation(request), context_of(request.scope).identity)
            self._streams.forget(stream)
        return Response(status_code=204)

    @_route("POST", "/v1/streams/lookup", body=LookupBody, answer=_STREAMS)
    async def look_up(self, request: Request) -> Response:
        """List the resumable streams among these conversations."""
        body, ignored, _ = await read_body(LookupBody, request)
        states = self._streams.states(body.conversation_ids, context_of(request.scope).identity)
        return Response(msgspec.json.encode(states), headers=ignored.headers, media_type="application/json")

    def _resumed(self, stream: ResumableStream, messages: AsyncIterator[bytes]) -> ASGIApp:
        self._metrics.count("streams_taken_up")
        return resumable_response(self._streams, stream, messages, keep_alive_s=self._keep_alive_s)

    def _conversation(self, request: Request) -> str:
        name = request.query_params.get("conv_id")
        if not name:
            raise errors.missing("conv_id")
        return name

    def _visible(self, identity: Identity) -> Sequence[LiveRequest]:
        live = [one for model in self._models for one in model.engine.requests()]
        return [one for one in live if Client.of_label(one.client).is_owned_by(identity)]


def _card(live: LiveRequest, seen_by: Identity) -> RequestCard:
    return response_of(
        RequestCard,
        live,
        priority=live.priority.label,
        age_s=round(live.age_s, 3),
        client=Client.of_label(live.client).shown_to(seen_by),
        inputs=live.num_inputs,
        inputs_done=None if live.num_inputs is None else live.num_embedded,
        first_token_ms=None if live.first_token_ms is None else round(live.first_token_ms, 1),
    )


ROUTER = ApiRouter[AppState](RequestRoutes)
