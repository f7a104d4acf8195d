"""Routes of Ollama's API for answers and models."""

from __future__ import annotations

from functools import partial
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.generation import CascadeAttempt
from openai_cpu_server.api.generation.route import ApiAdapter, BodyReader, GenerationRoute, while_connected
from openai_cpu_server.api.ollama.models import (
    OllamaProcesses,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
    listed,
    listed_file,
    running,
    shown,
)
from openai_cpu_server.api.ollama.render import (
    NDJSON,
    OLLAMA,
    SHAPE,
    JsonLines,
    OllamaError,
    OllamaLine,
    OllamaRenderer,
    lines_of,
)
from openai_cpu_server.api.ollama.schema import (
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaShowBody,
)
from openai_cpu_server.api.ollama.to_params import ollama_chat_ask, ollama_generate_ask
from openai_cpu_server.api.parts import AppState, chosen_model
from openai_cpu_server.contract.engine import EngineState, unavailable
from openai_cpu_server.errors import Forbidden, missing
from openai_cpu_server.http.body import off_loop, unkept_body
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import CALLS, INFERENCE, Scope
from openai_cpu_server.http.parse import Ignored, parse
from openai_cpu_server.http.routes import GENERATION_ERRORS, ApiRoute, ApiRouter
from openai_cpu_server.models.registry import shelved

B = TypeVar("B", bound=OllamaBody)
_API_VERSION = "0.13.0"
"""Version of Ollama with this API. Clients require a minimum, such as 0.6.4 for VS Code."""


class OllamaGeneration(Generic[B]):
    def __init__(self, family: ApiAdapter[B], renderer: OllamaRenderer, field: str, parts: AppState) -> None:
        """`field`: field that has the conversation or prompt."""
        self._reader = family.reader
        self._renderer = renderer
        self._field = field
        self._parts = parts
        self._route = GenerationRoute(family, parts.generation, parts.options)

    async def create(self, request: Request) -> ASGIApp:
        data = await unkept_body(request)
        num_bytes = len(data)
        reading = partial(parse, self._reader.schema, data, lenient=self._parts.options.lenient)
        body, ignored = await off_loop(num_bytes, reading)
        del data, reading  # the call may wait for long
        if not getattr(body, self._field):
            return await self._load_or_unload(body, request)
        return await self._answer(request, body, ignored, num_bytes)

    async def _answer(self, request: Request, body: B, ignored: Ignored, num_bytes: int) -> ASGIApp:
        context = context_of(request.scope)
        ask = await off_loop(num_bytes, partial(self._reader.ask, body, ignored, num_bytes=num_bytes))
        watched = partial(while_connected, request.receive)
        call = await self._parts.generation.begin(ask, context, CascadeAttempt(watched))
        context.body.release()
        if call.call.stream:
            lines = lines_of(call, self._route.renderer(call))
            return JsonLines(lines, call.call.headers, call)
        whole = await self._route.whole(call, watched)
        return Response(whole, media_type="application/json", headers=dict(call.call.headers))

    async def _load_or_unload(self, body: B, request: Request) -> Response:
        """Load or unload the model. Unloading needs the scope admin, as everywhere."""
        identity = context_of(request.scope).identity
        chosen = await chosen_model(self._parts.models, request, body.model)
        if body.unloads:
            if not identity.may(Scope.ADMIN):
                raise Forbidden(Scope.ADMIN.value)
            await self._parts.keeping.unload(chosen.model)
        else:
            if chosen.model.engine.state is EngineState.FAILED and not chosen.model.may_retry():
                raise unavailable(chosen.model.engine.status())
            await self._parts.keeping.load(chosen.model, replace=False)
        return json_response(self._renderer.unasked(chosen.name, "unload" if body.unloads else "load"))


_CHAT = OllamaRenderer(is_chat=True)
_GENERATE = OllamaRenderer(is_chat=False)
OLLAMA_CHAT = ApiAdapter(BodyReader(OllamaChatBody, ollama_chat_ask), _CHAT)
OLLAMA_GENERATE = ApiAdapter(BodyReader(OllamaGenerateBody, ollama_generate_ask), _GENERATE)


_route = partial(ApiRoute, access=INFERENCE, tag="Ollama", error=OllamaError)
_generation = partial(
    _route,
    "POST",
    access=CALLS,
    answer=OllamaLine,
    streams=True,
    stream_form="Unless `stream` is false: an object on each line; the last one has `done` and the counts.",
    stream_media=NDJSON,
    errors=GENERATION_ERRORS,
)


class OllamaRoutes:
    def __init__(self, parts: AppState) -> None:
        self._chat = OllamaGeneration(OLLAMA_CHAT, _CHAT, "messages", parts)
        self._generate = OllamaGeneration(OLLAMA_GENERATE, _GENERATE, "prompt", parts)
        self._models = parts.models
        self._lenient = parts.options.lenient

    @_generation(f"{OLLAMA}/chat", body=OllamaChatBody)
    async def chat(self, request: Request) -> ASGIApp:
        """Answer a conversation, in Ollama's format."""
        return await self._chat.create(request)

    @_generation(f"{OLLAMA}/generate", body=OllamaGenerateBody)
    async def generate(self, request: Request) -> ASGIApp:
        """Answer a prompt, in Ollama's format."""
        return await self._generate.create(request)

    @_route("GET", f"{OLLAMA}/tags", answer=OllamaTags)
    async def tags(self, request: Request) -> Response:
        """List the served models."""
        allowed = context_of(request.scope).identity.allowed_models
        there, names = await shelved(self._models, allowed), self._models.names(allowed)
        served = [listed(self._models.choose(name, allowed)) for name in names]
        return json_response(OllamaTags([*served, *map(listed_file, there)]))

    @_route("GET", f"{OLLAMA}/ps", answer=OllamaProcesses)
    async def running(self, request: Request) -> Response:
        """List the models in memory, each under one of its names."""
        allowed = context_of(request.scope).identity.allowed_models
        chosen = [self._models.choose(name, allowed) for name in self._models.names(allowed)]
        first = {id(each.model): each for each in reversed(chosen) if each.adapter is None}
        ready = [each for each in reversed(first.values()) if each.model.engine.state is EngineState.READY]
        return json_response(OllamaProcesses([running(each, each.model.loaded()) for each in ready]))

    @_route("POST", f"{OLLAMA}/show", body=OllamaShowBody, answer=OllamaShown, errors=(404, 503))
    async def show(self, request: Request) -> Response:
        """Describe a model and its capabilities."""
        body, ignored = parse(OllamaShowBody, await unkept_body(request), lenient=self._lenient)
        name = body.model or body.name
        if name is None:
            raise missing("model")
        chosen = await chosen_model(self._models, request, name)
        return json_response(shown(chosen), headers=ignored.headers)

    @_route("GET", f"{OLLAMA}/version", answer=OllamaVersion)
    async def version(self, request: Request) -> Response:
        """Return the version of Ollama whose API this is."""
        return json_response(OllamaVersion(_API_VERSION))


ROOM = ApiRouter[AppState](OllamaRoutes, shape=SHAPE)
