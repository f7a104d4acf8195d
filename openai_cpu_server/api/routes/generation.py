"""The one way of every generating call: parse, choose the model, resolve, submit, then tell or gather."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.access.identity import identity_of
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.rate_limits import Lease
from openai_cpu_server.api.calls.call import PRIORITY_HEADER, Asking, Call, Sender
from openai_cpu_server.api.calls.deadline import limit_time
from openai_cpu_server.api.calls.disconnect import while_connected
from openai_cpu_server.api.calls.event_stream import EventStream
from openai_cpu_server.api.calls.running import Running
from openai_cpu_server.api.gates.fair_use import lease_of, release_body, unkept_body
from openai_cpu_server.api.gates.ticket import Ticket, ticket_of
from openai_cpu_server.api.offload import SLOW, off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.answers import Answer
from openai_cpu_server.api.render.renderer import AnswerRenderer, Renderer, Usage
from openai_cpu_server.api.resolve.answer_shape import may_shape_output
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.parse import parse
from openai_cpu_server.errors import DeadlineExceeded, GenerationFailed, InvalidRequest, ServerError
from openai_cpu_server.models.abilities import Ability, choose_able
from openai_cpu_server.models.registry import Chosen, ModelRegistry

B = TypeVar("B", bound=GenerationBody)
Gathering = Callable[[], Awaitable[dict[str, Answer]]]
Doing = Callable[[Gathering], Awaitable[dict[str, Answer]]]


class Family(Protocol[B]):
    """Chat or text completions: what its bodies are, what they mean, and how it tells answers."""

    @property
    def schema(self) -> type[B]: ...

    @property
    def renderer(self) -> AnswerRenderer: ...

    def resolve(self, body: B, asking: Asking) -> Call:
        """Runs in any thread. Raises what `api/errors.py` lists."""
        ...


async def _do(work: Gathering) -> dict[str, Answer]:
    return await work()


class GenerationRoute(Generic[B]):
    def __init__(self, family: Family[B], models: ModelRegistry, options: ApiOptions) -> None:
        self._family = family
        self._models = models
        self._options = options

    async def create(self, request: Request) -> ASGIApp:
        running = await self._begun(request)
        release_body(request.scope)
        return self._streamed(running) if running.call.stream else await self._gathered(request, running)

    async def _begun(self, request: Request) -> Running:
        """It keeps nothing of the body: the call may wait for long."""
        data = await unkept_body(request)
        sender = self.sender(identity_of(request.scope), header=request.headers.get(PRIORITY_HEADER))
        return await self.begin(data, sender, ticket_of(request.scope), lease_of(request.scope))

    def sender(self, identity: Identity, *, header: str | None) -> Sender:
        return Sender.of(identity, header=header, default=self._options.default_priority)

    async def begin(self, data: bytes, sender: Sender, ticket: Ticket, lease: Lease) -> Running:
        """Resolves and submits. Raises what `api/errors.py` lists. Whoever gets the call must enter it."""
        call, chosen = await self._resolved(data, sender)
        ticket.priority = call.priority
        await lease.reserve(prompt_tokens=call.prompt_tokens, output_tokens=call.max_output_tokens)
        try:
            generation = chosen.model.engine.generate(call.requests)
        except ServerError:
            await lease.refund()
            if not self._models.is_current(chosen.model):  # replaced meanwhile, maybe with other tokens
                return await self.begin(data, sender, ticket, lease)
            raise
        limit_time(generation, ticket, call.timeout_s, self._options.request_timeout_s)
        return Running(call, generation, chosen.model, ticket=ticket, lease=lease)

    def renderer(self, running: Running) -> Renderer:
        """The renderer of a call that is streamed."""
        return self._family.renderer.stream(running.call, running.model.pieces)

    async def whole(self, running: Running, do: Doing = _do) -> bytes:
        """The answer of a call that is not streamed. `do` does the work as long as somebody wants it."""
        async with running:
            answers = await do(running.gather)
        usage, timings = running.usage(), running.timings
        render = partial(
            self._family.renderer.whole, running.call, running.model.pieces, answers, usage, timings
        )
        return await off_loop(_shown_bytes(running.call, usage), render)

    async def answer(self, data: bytes, sender: Sender, ticket: Ticket) -> bytes:
        """The whole answer to a body that came by no request of its own, such as a row of a batch job.

        Raises what `api/errors.py` lists. The server's limit of time is not for these, which wait long.
        """
        call, chosen = await self._resolved(data, sender)
        if call.stream:
            message = "'stream' is not possible in a batch."
            raise InvalidRequest(message, param="stream", code="unsupported_value")
        generation = chosen.model.engine.generate(call.requests)
        if call.timeout_s is not None:
            generation.fail_in(call.timeout_s, DeadlineExceeded(call.timeout_s))
        try:
            return await self.whole(Running(call, generation, chosen.model, ticket=ticket))
        except GenerationFailed:
            chosen.model.loaded()  # an engine that is gone takes its requests with it: not their fault
            raise

    async def _resolved(self, data: bytes, sender: Sender) -> tuple[Call, Chosen]:
        reading = partial(parse, self._family.schema, data, lenient=self._options.lenient)
        body, ignored = await off_loop(len(data), reading)
        allowed = sender.identity.allowed_models
        chosen = choose_able(self._models, body.model, allowed, Ability.GENERATE, adapter=body.lora)
        asking = Asking(chosen, chosen.model.loaded(), sender, self._options, ignored)
        size = SLOW if may_shape_output(data) else len(data)
        return await off_loop(size, partial(self._family.resolve, body, asking)), chosen

    def _streamed(self, running: Running) -> ASGIApp:
        return EventStream(running, self.renderer(running), keep_alive_s=self._options.keep_alive_s)

    async def _gathered(self, request: Request, running: Running) -> Response:
        body = await self.whole(running, partial(while_connected, request.receive))
        return Response(body, media_type="application/json", headers=dict(running.call.headers))


def _shown_bytes(call: Call, usage: Usage) -> int:
    """About the size of the response: with log-probabilities it can be megabytes."""
    per_token = 4 if call.shown_logprobs is None else 64 * (1 + call.shown_logprobs)
    return per_token * usage.total_tokens
