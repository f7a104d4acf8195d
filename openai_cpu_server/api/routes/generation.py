"""The one way of every generating call: resolve, submit, then stream or gather."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.auth import key_identity
from openai_cpu_server.api.call import Call
from openai_cpu_server.api.disconnect import while_connected
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.answers import Answer
from openai_cpu_server.api.render.common import Usage
from openai_cpu_server.api.resolve.calls import Circumstances
from openai_cpu_server.api.resolve.priority import HEADER
from openai_cpu_server.api.routes.family import Family, Resolved
from openai_cpu_server.api.stream import StreamedCall
from openai_cpu_server.api.tally import Tally
from openai_cpu_server.api.ticket import ticket_of
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.engine.client import EngineClient
from openai_cpu_server.engine.generation import Generation
from openai_cpu_server.engine.state import EngineState
from openai_cpu_server.errors import EngineUnavailable


class GenerationRoute:
    def __init__(self, family: Family, engine: EngineClient, options: ApiOptions) -> None:
        self._family = family
        self._engine = engine
        self._options = options

    async def create(self, request: Request) -> ASGIApp:
        data = await request.body()
        around = self._around(request)
        resolved = await off_loop(len(data), partial(self._family.resolve, data, around))
        generation = self._engine.generate(resolved.call.requests)
        if resolved.call.stream:
            return self._streamed(resolved, generation)
        return await self._gathered(request, resolved, generation)

    def _around(self, request: Request) -> Circumstances:
        headers = request.headers
        identity = key_identity(headers.get("authorization"))
        return Circumstances(model_of(self._engine), self._options, headers.get(HEADER), identity)

    def _streamed(self, resolved: Resolved, generation: Generation) -> ASGIApp:
        return StreamedCall(
            resolved.call,
            generation,
            self._family.renderer.stream(resolved.call),
            headers=resolved.ignored.headers,
            keep_alive_s=self._options.keep_alive_s,
        )

    async def _gathered(self, request: Request, resolved: Resolved, generation: Generation) -> Response:
        call, tally = resolved.call, Tally(resolved.call)
        try:
            async with generation:
                answers = await while_connected(request.receive, partial(_gather, call, generation, tally))
        finally:
            tally.report(ticket_of(request.scope), generation.timings)
        usage = tally.usage()
        render = partial(self._family.renderer.whole, call, answers, usage, generation.timings)
        body = await off_loop(_shown_bytes(call, usage), render)
        return Response(body, media_type="application/json", headers=resolved.ignored.headers)


async def _gather(call: Call, generation: Generation, tally: Tally) -> dict[str, Answer]:
    answers = {request.id: Answer() for request in call.requests}
    async for event in generation:
        tally.note(event)
        answers[event.id].add(event)
    return answers


def _shown_bytes(call: Call, usage: Usage) -> int:
    """About the size of the response: with log-probabilities it can be megabytes."""
    per_token = 4 if call.shown_logprobs is None else 64 * (1 + call.shown_logprobs)
    return per_token * usage.total_tokens


def model_of(engine: EngineClient) -> ModelInfo:
    """Raises EngineUnavailable while there is none to generate with."""
    if engine.info is None or engine.state in (EngineState.FAILED, EngineState.STOPPED):
        raise unavailable(engine)
    return engine.info


def unavailable(engine: EngineClient) -> EngineUnavailable:
    """Why nothing can be generated now."""
    match engine.state:
        case EngineState.LOADING:
            return EngineUnavailable(f"The model is loading ({engine.loading_fraction:.0%}).")
        case EngineState.RESTARTING:
            return EngineUnavailable(f"The engine is restarting: {engine.reason}.")
        case state:
            return EngineUnavailable(f"The engine is {state.value}: {engine.reason}.", retry_after_s=10)
