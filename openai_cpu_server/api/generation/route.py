from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.api.generation.generation import WITHOUT_GUARD, CascadeAttempt, GenerationService
from openai_cpu_server.api.generation.params import GenerationParams
from openai_cpu_server.api.generation.renderer import (
    AnswerRenderer,
    GatheredAnswer,
    GatheredCall,
    Renderer,
    events,
)
from openai_cpu_server.api.generation.resumable_streams import (
    CONVERSATION_HEADER,
    ResumableStream,
    ResumableStreams,
    stream_owner,
)
from openai_cpu_server.api.generation.running import (
    AnswerStream,
    OpenCall,
    RunningCall,
    StreamItem,
    chunks_of,
)
from openai_cpu_server.contract.messages import ModelLoading, QueuePlace
from openai_cpu_server.errors import GenerationFailed, InvalidRequest, wrong_value
from openai_cpu_server.http.body import BodyQuota, off_loop, streamed_body
from openai_cpu_server.http.context import RequestContext, context_of, request_log_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.parse import Body, Ignored, parse
from openai_cpu_server.models.registry import Ability, choose_able, ensure_served
from openai_cpu_server.observe.ended import RequestOrigin

T = TypeVar("T")


async def while_connected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Run the work until the client leaves, behind its body. Raises ClientDisconnect."""
    results: list[T] = []
    failures: list[Exception] = []  # carried out by hand: a task group would wrap them

    async def cancel_on_disconnect(scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_on_disconnect, group.cancel_scope)
        try:
            results.append(await work())
        except Exception as error:
            failures.append(error)
        group.cancel_scope.cancel()
    for failure in failures:
        raise failure
    for result in results:
        return result
    raise ClientDisconnect


NO_STORE_HEADERS = {"cache-control": "no-cache"}
_SHUTDOWN_GRACE_S = 1.0


class _Ping(ServerSentEvent):
    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self._encoded = encoded

    def encode(self) -> bytes:
        return self._encoded


def _comment(text: str) -> bytes:
    """Omit the blank line, which makes the official Go SDK before 3.43 see an empty event and stop."""
    return f": {text}\n".encode()


_KEEP_ALIVE = _Ping(_comment("keep-alive"))


def event_source(
    encoded_events: AsyncIterator[bytes],
    headers: Mapping[str, str],
    *,
    keep_alive_s: float,
    ping: Callable[[], ServerSentEvent] = lambda: _KEEP_ALIVE,
    grace_s: float = 0,
) -> EventSourceResponse:
    """`ping`: keepalive of idle streams. `grace_s`: time to continue at shutdown."""
    return EventSourceResponse(
        encoded_events,
        headers={**NO_STORE_HEADERS, **headers},
        sep="\n",
        ping=keep_alive_s,
        ping_message_factory=ping,
        shutdown_grace_period=grace_s,
    )


@dataclass(frozen=True)
class EventStream:
    """Owns its call."""

    running: OpenCall
    renderer: Renderer
    _: KW_ONLY
    keep_alive_s: float
    items: AsyncIterator[StreamItem] | None = None
    """Call's own if None."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        items = self.running.emit(self.renderer) if self.items is None else self.items
        stream = AnswerStream(items, self.renderer, request_log_of(scope))
        response = event_source(
            self._encoded(stream),
            self.running.call.headers,
            keep_alive_s=self.keep_alive_s,
            ping=self._ping,
            grace_s=_SHUTDOWN_GRACE_S,
        )
        try:
            async with self.running:
                await response(scope, receive, send)
        finally:
            if not stream.has_ended:
                stream.request_log.client_gone()

    async def _encoded(self, stream: AnswerStream) -> AsyncIterator[bytes]:
        async for item in stream:
            encoded = events(chunks_of(item, self.renderer))
            if isinstance(item, (QueuePlace, ModelLoading)):
                encoded = encoded or comment(item)
            yield encoded

    def _ping(self) -> ServerSentEvent:
        chunks = self.renderer.keepalive()
        return _Ping(events(chunks)) if chunks else _KEEP_ALIVE


def comment(news: QueuePlace | ModelLoading) -> bytes:
    """Encode `: queued position=3 first_token_ms=1200` or `: model is loading (40 %)`."""
    if isinstance(news, ModelLoading):
        return _comment(f"model is loading ({int(100 * news.fraction)} %)")
    return _comment(f"queued position={news.position} first_token_ms={round(news.first_token_ms)}")


B = TypeVar("B", bound=Body)
Gathering = Callable[[], Awaitable[dict[str, GatheredAnswer]]]


@dataclass
class BufferedBody:
    """Unread message of a WebSocket, with its share of the quota for bodies."""

    data: bytes
    quota: BodyQuota

    def take(self) -> bytes:
        """Hand over the data, to free it while the answer waits."""
        data, self.data = self.data, b""
        return data

    def release(self) -> None:
        self.data = b""
        self.quota.release()


def not_in_batches(param: str) -> InvalidRequest:
    message = f"'{param}' is not supported in a batch."
    return InvalidRequest(message, param=param, code="unsupported_value")


def resumable_response(
    streams: ResumableStreams, stream: ResumableStream, events: AsyncIterator[bytes], *, keep_alive_s: float
) -> ASGIApp:
    source = event_source(events, stream.headers, keep_alive_s=keep_alive_s, grace_s=_SHUTDOWN_GRACE_S)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        with streams.reading(stream):
            await source(scope, receive, send)

    return respond


class ApiAdapter(msgspec.Struct, Generic[B], frozen=True):
    """Distinguishing parts of a family: body to `GenerationParams`, events to bytes."""

    schema: type[B]
    to_params: Callable[[B], GenerationParams]
    renderer: AnswerRenderer

    def read(self, data: bytes, *, lenient: bool) -> GenerationParams:
        """Parse in any thread. Raises InvalidRequest, TooManyValues."""
        return self.convert(*parse(self.schema, data, lenient=lenient), num_bytes=len(data))

    def convert(self, body: B, ignored: Ignored, *, num_bytes: int) -> GenerationParams:
        """Convert a body that was parsed elsewhere. Raises InvalidRequest."""
        params = self.to_params(body)
        all_ignored = Ignored((*ignored.names, *params.ignored.names))
        return msgspec.structs.replace(params, num_bytes=num_bytes, ignored=all_ignored)


def conversation_of(headers: Mapping[str, str]) -> str | None:
    """Return None if the stream ends with its connection. Raises InvalidRequest."""
    name = headers.get(CONVERSATION_HEADER) or None
    if name is not None and not re.fullmatch(r"[!-~]{1,256}", name):
        raise wrong_value(CONVERSATION_HEADER, "1 to 256 characters without blanks")
    return name


@dataclass(frozen=True)
class GenerationRoute:
    family: ApiAdapter[Any]
    service: GenerationService

    async def create(self, request: Request) -> ASGIApp:
        conversation = conversation_of(request.headers)
        data, context = await streamed_body(request), context_of(request.scope)
        params = await self._read(data)
        del data  # the call may wait for long
        if conversation is not None and params.stream and self.service.streams.keep_s:
            return await self._resumable(conversation, params, context)
        disconnect_guard = partial(while_connected, request.receive)
        running = await self.service.begin(params, context, CascadeAttempt(disconnect_guard))
        context.body.release()
        if running.call.stream:
            return EventStream(
                running, self.renderer(running), keep_alive_s=self.service.options.keep_alive_s
            )
        body = await whole_answer(running, self.family.renderer, disconnect_guard)
        return Response(body, media_type="application/json", headers=dict(running.headers))

    async def _resumable(self, conversation: str, params: GenerationParams, outer: RequestContext) -> ASGIApp:
        """Begin a stream that outlives this request, with its own log entry."""
        streams, identity = self.service.streams, outer.identity
        streams.check(conversation, identity)
        context = outer.inner(RequestOrigin.BACKGROUND, id=outer.request_log.id)
        running = await self.service.begin(params, context)
        outer.body.release()
        owner, renderer = stream_owner(identity), self.renderer(running)
        stream = ResumableStream(conversation, owner, running, renderer, outer.reservation)
        streams.begin(stream)
        keep_alive_s = self.service.options.keep_alive_s
        return resumable_response(streams, stream, stream.log.read(0), keep_alive_s=keep_alive_s)

    async def begin(
        self, data: bytes, context: RequestContext, attempt: CascadeAttempt = WITHOUT_GUARD
    ) -> RunningCall:
        """Submit a body, as `GenerationService.begin`."""
        return await self.service.begin(await self._read(data), context, attempt)

    def renderer(self, running: RunningCall) -> Renderer:
        return self.family.renderer.stream(running.call, running.model.pieces)

    async def answer(self, data: bytes, context: RequestContext) -> bytes:
        """Answer a body without its own request, such as a batch row."""
        params = await self._read(data)
        if params.stream:
            raise not_in_batches("stream")
        running = await self.service.begin(params, context)
        try:
            return await whole_answer(running, self.family.renderer)
        except GenerationFailed:
            running.model.loaded()  # an engine that is gone takes its requests with it: not their fault
            raise

    async def _read(self, data: bytes) -> GenerationParams:
        reading = partial(self.family.read, data, lenient=self.service.options.lenient)
        return await off_loop(len(data), reading)


async def whole_answer(
    running: RunningCall,
    renderer: AnswerRenderer,
    disconnect_guard: Callable[[Gathering], Awaitable[dict[str, GatheredAnswer]]] = lambda work: work(),
) -> bytes:
    """`disconnect_guard`: runs the work while the client waits."""
    async with running:
        answers = await disconnect_guard(running.gather)
    gathered = GatheredCall(running.call, running.model.pieces, answers, running.figures)
    num_alternatives = running.call.shown_logprobs
    per_token = 4 if num_alternatives is None else 64 * (1 + num_alternatives)
    return await off_loop(per_token * gathered.figures.total_tokens, partial(renderer.whole, gathered))


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "response.input_tokens"
    input_tokens: int


async def count_tokens(
    request: Request,
    family: ApiAdapter[Any],
    service: GenerationService,
    answer: Callable[..., msgspec.Struct] = InputTokens,
) -> Response:
    """Count without an engine."""
    data = await streamed_body(request)
    params = await off_loop(len(data), partial(family.read, data, lenient=service.options.lenient))
    context = context_of(request.scope)
    allowed = context.identity.allowed_models
    await ensure_served(service.models, params.model, allowed)
    chosen = choose_able(service.models, params.model, allowed, Ability.GENERATE)
    num_tokens, ignored = await service.prompt_tokens(params, chosen, context)
    return json_response(answer(input_tokens=num_tokens), headers=ignored.headers)
