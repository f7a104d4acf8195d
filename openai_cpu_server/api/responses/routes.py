"""The routes of Responses: made, stored, cancelled, over a WebSocket."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.asking.generation import CascadeAttempt
from openai_cpu_server.api.asking.resolve import prompt_tokens
from openai_cpu_server.api.asking.route import EventStream, InputTokens, not_in_batches, while_connected
from openai_cpu_server.api.parts import ServerParts
from openai_cpu_server.api.responses.background import Background, LiveResponse
from openai_cpu_server.api.responses.body import InputTokensBody, ResponsesBody
from openai_cpu_server.api.responses.making import ResponseMaker
from openai_cpu_server.api.responses.objects import ItemList, ResponseDeleted, ResponseObject
from openai_cpu_server.api.responses.socket import ResponsesExchange
from openai_cpu_server.api.responses.stored import StoredResponses, logged_stream
from openai_cpu_server.api.responses.stream import encoded
from openai_cpu_server.api.responses.turns import AskedResponse, ResponseReader
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.http.body import in_thread, off_loop, unkept_body
from openai_cpu_server.http.context import RequestContext, context_of
from openai_cpu_server.http.errors import ORDERS, PAGE_QUERY, json_response
from openai_cpu_server.http.keys import CALLS, INFERENCE, REQUESTS, WORK
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import parse
from openai_cpu_server.http.routes import GENERATION_ERRORS, WEBSOCKET, RouteRoom, RouteRow
from openai_cpu_server.http.sockets import SocketServer
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.models.registry import Ability, ModelRegistry, choose_able
from openai_cpu_server.observe.ended import RequestOrigin


class ResponsesRoute:
    """`background`: None where responses are not stored."""

    def __init__(
        self,
        models: ModelRegistry,
        options: ApiOptions,
        reader: ResponseReader,
        maker: ResponseMaker,
        background: Background | None,
    ) -> None:
        self._models = models
        self._options = options
        self._reader = reader
        self._maker = maker
        self._background = background

    async def create(self, request: Request) -> ASGIApp:
        data, context = await unkept_body(request), context_of(request.scope)
        read = await self._reader.read(data, context.identity)
        if read.body.background and self._background is not None:
            return await self._behind(context, read, self._background)
        trial = CascadeAttempt(partial(while_connected, request.receive))
        making = await self._maker.begin(read, context, trial)
        context.body.release()
        if making.running.call.stream:
            keep_alive_s = self._options.keep_alive_s
            return EventStream(making.running, making.stream, keep_alive_s=keep_alive_s, told=making.told())
        body = await while_connected(request.receive, making.whole)
        return Response(body, media_type="application/json", headers=dict(making.running.call.headers))

    async def answer(self, data: bytes, context: RequestContext) -> bytes:
        """The whole answer to a row of a batch job. A row is stored only where it says so: the batch's output
        file has it anyway. Raises as `create`."""
        read = await self._reader.read(data, context.identity, stores_unasked=False)
        for name in ("stream", "background"):
            if getattr(read.body, name):
                raise not_in_batches(name)
        making = await self._maker.begin(read, context)
        try:
            return await making.whole()
        except GenerationFailed:
            making.running.model.loaded()  # an engine that is gone takes its requests with it
            raise

    async def input_tokens(self, request: Request) -> Response:
        """Counts what the prompt would have, and makes nothing."""
        data = await unkept_body(request)
        reading = partial(parse, InputTokensBody, data, lenient=self._options.lenient)
        asked, ignored = await off_loop(len(data), reading)
        body, context = asked.as_response(), context_of(request.scope)
        read = await self._reader.of_body(body, ignored, context.owner, size=len(data))
        chosen = choose_able(
            self._models, body.model, context.identity.allowed_models, Ability.GENERATE, adapter=body.lora
        )
        ask, model = read.ask(), chosen.model
        model.loaded()
        num_tokens = await in_thread(partial(prompt_tokens, ask, model), is_slow=ask.is_slow)
        return json_response(InputTokens(input_tokens=num_tokens), headers=ask.ignored.headers)

    async def _behind(self, outer: RequestContext, read: AskedResponse, background: Background) -> ASGIApp:
        """It goes on when this request has ended. The server's limit of time is not for it."""
        ticket = outer.ticket.inner(RequestOrigin.BACKGROUND)
        ticket.client = outer.ticket.client
        assert outer.lease is not None, "its route is metered"
        context = RequestContext(ticket, outer.sender, outer.lease)
        making = await self._maker.begin(read, context, status=ResponseStatus.QUEUED)
        live = LiveResponse(making, ticket, outer.lease)
        headers = dict(making.running.call.headers)
        first = encoded(making.response)
        await background.begin(live)
        if making.running.call.stream:
            return logged_stream(live.log.read(0), headers, keep_alive_s=self._options.keep_alive_s)
        return Response(first, media_type="application/json", headers=headers)


class ResponsesRoutes:
    def __init__(self, parts: ServerParts) -> None:
        models, options = parts.models, parts.options
        shelf = parts.jobs.responses if parts.jobs else None
        background = Background(shelf, parts.endings) if shelf else None
        if background is not None:
            parts.at_end.append(background.close)
        reader, maker = ResponseReader(shelf, options), ResponseMaker(parts.generation, options, shelf)
        self.route = ResponsesRoute(models, options, reader, maker, background)
        self.stored = StoredResponses(shelf, background, options)
        self.socket = SocketServer(partial(ResponsesExchange, reader, maker), parts.sockets)


_row = partial(RouteRow[ResponsesRoutes], access=REQUESTS, tag="Responses")
ROOM = RouteRoom[ServerParts, ResponsesRoutes](
    ResponsesRoutes,
    (
        _row(
            "POST",
            "/v1/responses",
            lambda at: at.route.create,
            access=CALLS,
            summary="Make a response: whole, as server-sent events, or in the background",
            body=ResponsesBody,
            answer=ResponseObject,
            streams=True,
            errors=GENERATION_ERRORS,
            batched=lambda at: at.route.answer,
        ),
        _row(
            WEBSOCKET,
            "/v1/responses",
            lambda at: at.socket.serve,
            access=INFERENCE,
            summary="OpenAI's WebSocket mode: response.create in, the events of a stream out",
        ),
        _row(
            "POST",
            "/v1/responses/input_tokens",
            lambda at: at.route.input_tokens,
            access=WORK,
            summary="How many tokens a response's prompt would have",
            body=InputTokensBody,
            answer=InputTokens,
            errors=(404, 503),
        ),
        _row(
            "GET",
            "/v1/responses/{id}",
            lambda at: at.stored.one,
            summary="A stored response, or the events of one that was made in the background",
            query={
                "stream": {"type": "boolean", "default": False},
                "starting_after": {
                    "type": "integer",
                    "description": "number of the last event that is known",
                },
                "include[]": {
                    "type": "string",
                    "description": "changes nothing: all that there is is shown",
                },
                "include_obfuscation": {"type": "boolean", "description": "changes nothing"},
            },
            answer=ResponseObject,
            streams=True,
            errors=(400,),
        ),
        _row(
            "DELETE",
            "/v1/responses/{id}",
            lambda at: at.stored.delete,
            summary="Delete it",
            answer=ResponseDeleted,
        ),
        _row(
            "POST",
            "/v1/responses/{id}/cancel",
            lambda at: at.stored.cancel,
            access=INFERENCE,
            summary="End one that is made in the background",
            answer=ResponseObject,
            errors=(400,),
        ),
        _row(
            "GET",
            "/v1/responses/{id}/input_items",
            lambda at: at.stored.input_items,
            summary="What went into it",
            query={**PAGE_QUERY, "order": {"enum": list(ORDERS)}, "include[]": {"type": "string"}},
            answer=ItemList,
        ),
    ),
)
