"""Live requests: listed, cancelled with an error, stopped without one (`/control`), and resumed
(`/stream`)."""

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

from openai_cpu_server.api.generation.resumable_streams import (
    LAST_EVENT_HEADER,
    ResumableStream,
    StreamState,
    events_lost,
)
from openai_cpu_server.api.generation.route import resumable_response
from openai_cpu_server.api.generation.running import OpenCall
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.contract.engine import LiveRequest
from openai_cpu_server.errors import (
    NotThinking,
    RequestEnded,
    RequestNotFound,
    missing,
    unknown_parameter,
    wrong_value,
)
from openai_cpu_server.http.body import unkept_body
from openai_cpu_server.http.clients import Client
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import INFERENCE, Identity
from openai_cpu_server.http.parse import Body, parse
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, JsonSchema


class RequestCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Id of the API object and number of the sequence: `chatcmpl-123/0`."""
    object: str = "request"
    priority: str
    state: str
    prompt_tokens: int
    output_tokens: int
    age_s: float
    client: str
    """Name of the API key, else the body's `user`, else part of a key's digest. Administrators' keys also
    see the address."""
    position: int | None
    """Position near the head of the queue, from 1."""
    first_token_ms: float | None
    """Estimate from now, if there is a position. For embeddings, until the first vector."""
    inputs: int | None
    """Texts to embed or score, or None if it generates."""
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
        """Apply the action. Raises RequestEnded, NotThinking."""
        if self is ControlAction.STOP:
            running.stop()
        else:
            running.stop_thinking()


_ACTIONS = tuple(action.value for action in ControlAction)


def _known_action(name: str) -> ControlAction:
    if name not in _ACTIONS:
        raise PydanticCustomError("action", f"Input should be one of {', '.join(map(repr, _ACTIONS))}")
    return ControlAction(name)


Action = Annotated[
    ControlAction, BeforeValidator(_known_action), WithJsonSchema({"type": "string", "enum": [*_ACTIONS]})
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

    success: Annotated[bool, msgspec.Meta(description="Else `message` says why not")]
    message: str = ""


class DeletedAnswer(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "chat.completion.deleted"


class LookupBody(Body):
    conversation_ids: Annotated[list[str], Field(max_length=1000, fail_fast=True)]


def _check_known(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            raise unknown_parameter(name)


def _counted_bytes(given: str | None) -> int:
    if given is None:
        return 0
    if not (given.isascii() and given.isdecimal() and len(given) < 12):
        raise wrong_value("from", "a number of bytes")
    return int(given)


class RequestRoutes:
    def __init__(self, parts: AppState) -> None:
        self._models = parts.models
        self._calls = parts.generation.calls
        self._streams = parts.generation.streams
        self._metrics = parts.watch.metrics.streams
        self._options = parts.options
        self._lenient = parts.options.lenient

    async def list(self, request: Request) -> Response:
        """List the requests of the caller's key, or all for an administrator."""
        identity = context_of(request.scope).identity
        return json_response(RequestList([_card(live, identity) for live in self._visible(identity)]))

    async def cancel(self, request: Request) -> Response:
        """Cancel a whole API call, by its id or that of one of its sequences."""
        name: str = request.path_params["id"]
        visible = self._visible(context_of(request.scope).identity)
        if not any(name in (live.id, live.id.partition("/")[0]) for live in visible):
            raise RequestNotFound(name)
        for model in self._models:
            model.engine.cancel(name)
        return json_response(Cancelled(name))

    async def control(self, request: Request) -> Response:
        body, ignored = parse(ControlBody, await unkept_body(request), lenient=self._lenient)
        name: str = request.path_params["id"]
        body.action.on(self._calls.find(name, context_of(request.scope).identity))
        return json_response(Controlled(name, body.action.value), headers=ignored.headers)

    async def control_as_llama_server(self, request: Request) -> Response:
        body, ignored = parse(LlamaControlBody, await unkept_body(request), lenient=self._lenient)
        told = LlamaControlled(success=True)
        try:
            body.action.on(self._calls.find(body.id, context_of(request.scope).identity))
        except (RequestNotFound, RequestEnded, NotThinking) as error:
            told = LlamaControlled(success=False, message=str(error))
        return json_response(told, headers=ignored.headers)

    async def stop(self, request: Request) -> Response:
        """Stop an answer, or forget the recorded stream if it has ended."""
        name, identity = request.path_params["id"], context_of(request.scope).identity
        try:
            kept = self._streams.find(name, identity)
        except RequestNotFound:
            self._calls.find(name, identity).stop()
        else:
            if kept.log.has_ended:
                self._streams.forget(kept)
            else:
                kept.running.stop()
        return json_response(DeletedAnswer(name))

    async def stream(self, request: Request) -> ASGIApp:
        """Resume a stream. Raises RequestNotFound, and InvalidRequest for missing events."""
        _check_known(request, "starting_after")
        last = request.headers.get(LAST_EVENT_HEADER) or request.query_params.get("starting_after")
        kept = self._streams.find(request.path_params["id"], context_of(request.scope).identity)
        return self._told(kept, kept.log.read(kept.number_behind(last)))

    async def stream_as_llama_server(self, request: Request) -> ASGIApp:
        _check_known(request, "conv_id", "from")
        start = _counted_bytes(request.query_params.get("from"))
        kept = self._streams.find(self._conversation(request), context_of(request.scope).identity)
        if not kept.log.has_byte(start):
            raise events_lost("from")
        return self._told(kept, kept.log.read_bytes(start))

    async def forget_as_llama_server(self, request: Request) -> Response:
        _check_known(request, "conv_id")
        with contextlib.suppress(RequestNotFound):
            kept = self._streams.find(self._conversation(request), context_of(request.scope).identity)
            self._streams.forget(kept)
        return Response(status_code=204)

    async def look_up(self, request: Request) -> Response:
        body, ignored = parse(LookupBody, await unkept_body(request), lenient=self._lenient)
        states = self._streams.states(body.conversation_ids, context_of(request.scope).identity)
        return Response(msgspec.json.encode(states), headers=ignored.headers, media_type="application/json")

    def _told(self, kept: ResumableStream, told: AsyncIterator[bytes]) -> ASGIApp:
        self._metrics.taken_up()
        return resumable_response(self._streams, kept, told, keep_alive_s=self._options.keep_alive_s)

    def _conversation(self, request: Request) -> str:
        name = request.query_params.get("conv_id")
        if not name:
            raise missing("conv_id")
        return name

    def _visible(self, identity: Identity) -> Sequence[LiveRequest]:
        live = [one for model in self._models for one in model.engine.requests()]
        return [one for one in live if Client.of_label(one.client).is_owned_by(identity)]


def _card(live: LiveRequest, seen_by: Identity) -> RequestCard:
    return RequestCard(
        id=live.id,
        priority=live.priority.label,
        state=live.state.value,
        prompt_tokens=live.prompt_tokens,
        output_tokens=live.output_tokens,
        age_s=round(live.age_s, 3),
        client=Client.of_label(live.client).shown_to(seen_by),
        position=live.position,
        inputs=live.num_inputs,
        inputs_done=None if live.num_inputs is None else live.num_embedded,
        first_token_ms=None if live.first_token_ms is None else round(live.first_token_ms, 1),
    )


_row = partial(ApiRoute[RequestRoutes], access=INFERENCE, tag="Requests")
_CONVERSATION: Mapping[str, JsonSchema] = {
    "conv_id": {"type": "string", "description": "the client's name for it"}
}
_rows = (
    _row("GET", "/v1/requests", lambda at: at.list, summary="Requests that run or wait", answer=RequestList),
    _row("DELETE", "/v1/requests/{id:path}", lambda at: at.cancel, summary="End one", answer=Cancelled),
    _row(
        "POST",
        "/v1/chat/completions/{id}/control",
        lambda at: at.control,
        summary="End an answer that runs as it is, or its thoughts",
        body=ControlBody,
        answer=Controlled,
        errors=(409,),
    ),
    _row(
        "POST",
        "/v1/chat/completions/control",
        lambda at: at.control_as_llama_server,
        summary="The same, as llama-server has it",
        body=LlamaControlBody,
        answer=LlamaControlled,
    ),
    _row(
        "DELETE",
        "/v1/chat/completions/{id}",
        lambda at: at.stop,
        summary="End an answer that runs as it is; forget the stream of one that has ended",
        answer=DeletedAnswer,
        errors=(409,),
    ),
    _row(
        "GET",
        "/v1/chat/completions/{id}/stream",
        lambda at: at.stream,
        summary="A stream that goes on without its client: what is missing, and what comes",
        query={"starting_after": {"type": "string", "description": "as the header `Last-Event-ID`"}},
        streams=True,
        media="text/event-stream",
        errors=(400,),
    ),
    _row(
        "GET",
        "/v1/stream",
        lambda at: at.stream_as_llama_server,
        summary="The same, as llama-server has it",
        query={**_CONVERSATION, "from": {"type": "integer", "description": "bytes that are known"}},
        streams=True,
        media="text/event-stream",
        errors=(400, 404),
    ),
    _row(
        "DELETE",
        "/v1/stream",
        lambda at: at.forget_as_llama_server,
        summary="End such a stream, and forget it",
        query=_CONVERSATION,
        status=204,
        errors=(400,),
    ),
    _row(
        "POST",
        "/v1/streams/lookup",
        lambda at: at.look_up,
        summary="Which of these conversations have such a stream",
        body=LookupBody,
        answer=StreamState,
        lists=(True,),
    ),
)
ROOM = ApiRouter[AppState, RequestRoutes](RequestRoutes, _rows)
