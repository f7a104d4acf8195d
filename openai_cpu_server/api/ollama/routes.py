"""Routes of Ollama's API for answers and models."""

from __future__ import annotations

from functools import partial
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.generation import CascadeAttempt
from openai_cpu_server.api.generation.route import ApiAdapter, BodyReader, GenerationRoute, while_connected
from openai_cpu_server.api.ollama.body import (
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaShowBody,
)
from openai_cpu_server.api.ollama.models import (
    OllamaProcesses,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
    listed,
    lying,
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
)
from openai_cpu_server.api.ollama.to_params import ollama_chat_ask, ollama_generate_ask
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.contract.engine import EngineState, unavailable
from openai_cpu_server.errors import Forbidden, missing
from openai_cpu_server.http.body import off_loop, unkept_body
from openai_cpu_server.http.context import RequestContext, context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import CALLS, INFERENCE, Scope
from openai_cpu_server.http.parse import Ignored, parse
from openai_cpu_server.http.routes import GENERATION_ERRORS, ApiRoute, ApiRouter
from openai_cpu_server.models.registry import fetch, shelved

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
        data, context = await unkept_body(request), context_of(request.scope)
        num_bytes = len(data)
        reading = partial(parse, self._reader.schema, data, lenient=self._parts.options.lenient)
        body, ignored = await off_loop(num_bytes, reading)
        del data, reading  # the call may wait for long
        if not getattr(body, self._field):
            return await self._kept(body, context)
        return await self._answer(request, body, ignored, num_bytes)

    async def _answer(self, request: Request, body: B, ignored: Ignored, num_bytes: int) -> ASGIApp:
        context = context_of(request.scope)
        ask = await off_loop(num_bytes, partial(self._reader.convert, body, ignored, num_bytes=num_bytes))
        watched = partial(while_connected, request.receive)
        call = await self._parts.generation.begin(ask, context, CascadeAttempt(watched))
        context.body.release()
        if call.call.stream:
            return JsonLines(call, self._route.renderer(call))
        whole = await self._route.whole(call, watched)
        return Response(whole, media_type="application/json", headers=dict(call.call.headers))

    async def _kept(self, body: B, context: RequestContext) -> Response:
        """Load or unload the model. Unloading needs the scope admin, as everywhere."""
        identity = context.identity
        await fetch(self._parts.models, body.model, identity.allowed_models)
        chosen = self._parts.models.choose(body.model, identity.allowed_models)
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


class OllamaRoutes:
    def __init__(self, parts: AppState) -> None:
        self.chat = OllamaGeneration(OLLAMA_CHAT, _CHAT, "messages", parts)
        self.generate = OllamaGeneration(OLLAMA_GENERATE, _GENERATE, "prompt", parts)
        self._models = parts.models
        self._lenient = parts.options.lenient

    async def tags(self, request: Request) -> Response:
        allowed = context_of(request.scope).identity.allowed_models
        there, names = await shelved(self._models, allowed), self._models.names(allowed)
        told = [listed(self._models.choose(name, allowed)) for name in names]
        return json_response(OllamaTags([*told, *map(lying, there)]))

    async def running(self, request: Request) -> Response:
        """List each model in memory once, whatever other names it has."""
        allowed = context_of(request.scope).identity.allowed_models
        chosen = [self._models.choose(name, allowed) for name in self._models.names(allowed)]
        first = {id(each.model): each for each in reversed(chosen) if each.adapter is None}
        ready = [each for each in reversed(first.values()) if each.model.engine.state is EngineState.READY]
        told = [running(each, each.model.loaded()) for each in ready]
        return json_response(OllamaProcesses(told))

    async def show(self, request: Request) -> Response:
        body, ignored = parse(OllamaShowBody, await unkept_body(request), lenient=self._lenient)
        name = body.model or body.name
        if name is None:
            raise missing("model")
        allowed = context_of(request.scope).identity.allowed_models
        await fetch(self._models, name, allowed)
        return json_response(shown(self._models.choose(name, allowed)), headers=ignored.headers)

    async def version(self, request: Request) -> Response:
        return json_response(OllamaVersion(_API_VERSION))


_row = partial(ApiRoute[OllamaRoutes], tag="Ollama", error=OllamaError)
_LINES = "Unless `stream` is false: an object on each line; the last one has `done` and the counts."
_generation = partial(
    _row,
    "POST",
    access=CALLS,
    answer=OllamaLine,
    streams=True,
    stream_form=_LINES,
    stream_media=NDJSON,
    errors=GENERATION_ERRORS,
)
_rows = (
    _generation(
        f"{OLLAMA}/chat",
        lambda at: at.chat.create,
        summary="Answer a conversation as Ollama does",
        body=OllamaChatBody,
    ),
    _generation(
        f"{OLLAMA}/generate",
        lambda at: at.generate.create,
        summary="Answer a prompt as Ollama does",
        body=OllamaGenerateBody,
    ),
    _row(
        "GET",
        f"{OLLAMA}/tags",
        lambda at: at.tags,
        access=INFERENCE,
        summary="The names that are served, as Ollama lists them",
        answer=OllamaTags,
    ),
    _row(
        "GET",
        f"{OLLAMA}/ps",
        lambda at: at.running,
        access=INFERENCE,
        summary="The models that are in memory, as Ollama lists them",
        answer=OllamaProcesses,
    ),
    _row(
        "POST",
        f"{OLLAMA}/show",
        lambda at: at.show,
        access=INFERENCE,
        summary="What is known of a model, and what it can do",
        body=OllamaShowBody,
        answer=OllamaShown,
        errors=(404, 503),
    ),
    _row(
        "GET",
        f"{OLLAMA}/version",
        lambda at: at.version,
        access=INFERENCE,
        summary="The version of Ollama whose API this is",
        answer=OllamaVersion,
    ),
)
ROOM = ApiRouter[AppState, OllamaRoutes](OllamaRoutes, _rows, shape=SHAPE)
