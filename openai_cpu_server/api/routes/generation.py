"""The one way of every generating call: resolve, submit, then stream or gather."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.access.authentication import identity_of
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.metering import lease_of
from openai_cpu_server.api.access.rate_limits import Lease
from openai_cpu_server.api.bodies import release_body, unkept_body
from openai_cpu_server.api.call import Call
from openai_cpu_server.api.disconnect import while_connected
from openai_cpu_server.api.offload import SLOW, off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.answers import Answer
from openai_cpu_server.api.render.common import Usage
from openai_cpu_server.api.resolve.answer_shape import may_shape_output
from openai_cpu_server.api.resolve.calls import Circumstances
from openai_cpu_server.api.resolve.priority import HEADER, likely_priority
from openai_cpu_server.api.routes.family import Family, Resolved
from openai_cpu_server.api.stream import StreamedCall, StreamRenderer
from openai_cpu_server.api.tally import Tally
from openai_cpu_server.api.ticket import Ticket, ticket_of
from openai_cpu_server.contract.engine import Engine, EngineState, Generation, Timings, unavailable
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import DeadlineExceeded, EngineUnavailable, InvalidRequest, ServerError

Gathering = Callable[[], Awaitable[dict[str, Answer]]]
Doing = Callable[[Gathering], Awaitable[dict[str, Answer]]]


class Begun(NamedTuple):
    """A call that has been submitted, and what comes of it."""

    resolved: Resolved
    generation: Generation

    @property
    def call(self) -> Call:
        return self.resolved.call


async def _do(work: Gathering) -> dict[str, Answer]:
    return await work()


class GenerationRoute:
    def __init__(self, family: Family, engine: Engine, options: ApiOptions) -> None:
        self._family = family
        self._engine = engine
        self._options = options

    async def create(self, request: Request) -> ASGIApp:
        begun = await self._begun(request)
        release_body(request.scope)
        return self._streamed(begun) if begun.call.stream else await self._gathered(request, begun)

    async def _begun(self, request: Request) -> Begun:
        """Keeps nothing of the body: the call may wait for long."""
        data = await unkept_body(request)
        around = self.around(identity_of(request.scope), priority_header=request.headers.get(HEADER))
        return await self.begin(data, around, ticket_of(request.scope), lease_of(request.scope))

    def around(self, identity: Identity, *, priority_header: str | None) -> Circumstances:
        """Of a call by this client. Raises EngineUnavailable."""
        return Circumstances(
            info=model_of(self._engine),
            options=self._options.seen_by(identity.key),
            priority_header=priority_header,
            identity=identity,
        )

    async def begin(self, data: bytes, around: Circumstances, ticket: Ticket, lease: Lease) -> Begun:
        """Resolve and submit. Raises what `api/errors.py` lists. Whoever gets it owns the generation."""
        try:
            resolved = await self._resolved(data, around)
        except ServerError:
            ticket.priority = await _likely_priority(data, around)
            raise
        call = resolved.call
        ticket.priority = call.priority
        prompt_tokens = sum(len(prompt.tokens) for prompt in call.prompts)
        await lease.reserve(prompt_tokens=prompt_tokens, output_tokens=call.max_output_tokens)
        try:
            generation = self._engine.generate(call.requests)
        except ServerError:
            await lease.refund()
            raise
        self._limit_time(ticket, call, generation)
        return Begun(resolved, generation)

    def stream_renderer(self, call: Call) -> StreamRenderer:
        return self._family.renderer.stream(call)

    async def whole(self, begun: Begun, ticket: Ticket, do: Doing = _do) -> bytes:
        """The answer of a call that is not streamed. `do` does the work as long as somebody wants it."""
        call, generation, tally = begun.call, begun.generation, Tally(begun.call)
        try:
            async with generation:
                answers = await do(partial(_gather, call, generation, tally))
        finally:
            tally.report(ticket, generation.timings)
        return await self._rendered(call, answers, tally.usage(), generation.timings)

    async def answer(self, data: bytes, around: Circumstances, ticket: Ticket) -> bytes:
        """The whole answer to a body that came by no request of its own, such as a row of a batch.

        Raises what `api/errors.py` lists. The server's limit of time is not for these, which wait long.
        """
        resolved = await self._resolved(data, around)
        call = resolved.call
        if call.stream:
            message = "'stream' is not possible in a batch."
            raise InvalidRequest(message, param="stream", code="unsupported_value")
        generation = self._engine.generate(call.requests)
        if call.timeout_s is not None:
            generation.fail_in(call.timeout_s, DeadlineExceeded(call.timeout_s))
        return await self.whole(Begun(resolved, generation), ticket)

    async def _resolved(self, data: bytes, around: Circumstances) -> Resolved:
        size = SLOW if may_shape_output(data) else len(data)
        return await off_loop(size, partial(self._family.resolve, data, around))

    def _limit_time(self, ticket: Ticket, call: Call, generation: Generation) -> None:
        """The client's limit or the server's, whichever is shorter; the call's time began when it came in."""
        limits_s = [limit for limit in (call.timeout_s, self._options.request_timeout_s) if limit is not None]
        if limits_s:
            timeout_s = min(limits_s)
            gone_s = time.monotonic() - ticket.started_s
            generation.fail_in(timeout_s - gone_s, DeadlineExceeded(timeout_s))

    def _streamed(self, begun: Begun) -> ASGIApp:
        return StreamedCall(
            begun.call,
            begun.generation,
            self.stream_renderer(begun.call),
            headers=begun.resolved.headers,
            keep_alive_s=self._options.keep_alive_s,
        )

    async def _gathered(self, request: Request, begun: Begun) -> Response:
        while_here = partial(while_connected, request.receive)
        body = await self.whole(begun, ticket_of(request.scope), while_here)
        return Response(body, media_type="application/json", headers=begun.resolved.headers)

    async def _rendered(
        self, call: Call, answers: Mapping[str, Answer], usage: Usage, timings: Timings
    ) -> bytes:
        render = partial(self._family.renderer.whole, call, answers, usage, timings)
        return await off_loop(_shown_bytes(call, usage), render)


async def _likely_priority(data: bytes, around: Circumstances) -> Priority | None:
    header, default = around.priority_header, around.options.default_priority
    return await off_loop(len(data), partial(likely_priority, data, header=header, default=default))


async def _gather(call: Call, generation: Generation, tally: Tally) -> dict[str, Answer]:
    answers = {request.id: Answer() for request in call.requests}
    async for event in generation:
        tally.note(event, generation.arrived_s)
        answers[event.id].add(event)
    return answers


def _shown_bytes(call: Call, usage: Usage) -> int:
    """About the size of the response: with log-probabilities it can be megabytes."""
    per_token = 4 if call.shown_logprobs is None else 64 * (1 + call.shown_logprobs)
    return per_token * usage.total_tokens


def model_of(engine: Engine) -> ModelInfo:
    """Raises EngineUnavailable while there is none to generate with."""
    if engine.info is None or engine.state in (EngineState.FAILED, EngineState.STOPPED):
        raise unavailable(engine.status())
    return engine.info


def check_not_ending(engine: Engine) -> None:
    """For new work that needs no engine at once. Raises EngineUnavailable while the server drains."""
    if engine.is_ending:
        again_s = EngineState.DRAINING.retry_after_s
        raise EngineUnavailable("The server is about to end and takes no new work.", again_s)
