"""`POST /v1/responses` and `POST /v1/responses/input_tokens`."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.calls.disconnect import while_connected
from openai_cpu_server.api.calls.event_stream import EventStream
from openai_cpu_server.api.calls.trial import Trial
from openai_cpu_server.api.offload import in_thread, off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.responses.stream import encoded
from openai_cpu_server.api.resolve.call import prompt_tokens
from openai_cpu_server.api.routes.counting import input_tokens
from openai_cpu_server.api.routes.responses.background import Background, Live
from openai_cpu_server.api.routes.responses.making import Maker
from openai_cpu_server.api.routes.responses.stored import logged_stream
from openai_cpu_server.api.routes.responses.turns import ReadTurn, TurnReader
from openai_cpu_server.api.schemas.parse import parse
from openai_cpu_server.api.schemas.responses import InputTokensBody
from openai_cpu_server.errors import GenerationFailed, InvalidRequest
from openai_cpu_server.http.body import unkept_body
from openai_cpu_server.http.context import RequestContext, context_of
from openai_cpu_server.http.replies import json_response
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.models.abilities import Ability, choose_able
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.ended import Origin


class ResponsesRoute:
    """`background`: None where responses are not stored."""

    def __init__(
        self,
        models: ModelRegistry,
        options: ApiOptions,
        reader: TurnReader,
        maker: Maker,
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
        trial = Trial(partial(while_connected, request.receive))
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
                message = f"'{name}' is not possible in a batch."
                raise InvalidRequest(message, param=name, code="unsupported_value")
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
        return json_response(input_tokens(num_tokens), headers=ask.ignored.headers)

    async def _behind(self, outer: RequestContext, read: ReadTurn, background: Background) -> ASGIApp:
        """It goes on when this request has ended. The server's limit of time is not for it."""
        ticket = outer.ticket.inner(Origin.BACKGROUND)
        ticket.client = outer.ticket.client
        assert outer.lease is not None, "its route is metered"
        context = RequestContext(ticket, outer.sender, outer.lease)
        making = await self._maker.begin(read, context, status=ResponseStatus.QUEUED)
        live = Live(making, ticket, outer.lease)
        headers = dict(making.running.call.headers)
        first = encoded(making.response)
        await background.begin(live)
        if making.running.call.stream:
            return logged_stream(live.log.read(0), headers, keep_alive_s=self._options.keep_alive_s)
        return Response(first, media_type="application/json", headers=headers)
