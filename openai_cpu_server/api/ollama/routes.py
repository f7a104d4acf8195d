from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, NoReturn, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.generation import CascadeAttempt
from openai_cpu_server.api.generation.route import ApiAdapter, while_connected, whole_answer
from openai_cpu_server.api.ollama import models, render, schema, to_params
from openai_cpu_server.api.state import AppState, ModelStore, chosen_model, pull_to_end, read_body, store_for
from openai_cpu_server.contract.engine import EngineState, unavailable
from openai_cpu_server.errors import Forbidden, InvalidRequest, missing, shown
from openai_cpu_server.http.body import in_thread, off_loop
from openai_cpu_server.http.context import RequestLog, context_of, request_log_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import ADMIN, INFERENCE, Scope
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, model_route
from openai_cpu_server.models.registry import Preset, available_models

B = TypeVar("B", bound=schema.OllamaBody)


async def _pull_lines(store: ModelStore, name: str, request_log: RequestLog) -> AsyncIterator[bytes]:
    """Report an error in the last line, because the status is already sent."""
    try:
        async for step in store.pull(name):
            if (progress := render.progress_of(step)) is not None:
                yield msgspec.json.encode(progress) + b"\n"
    except Exception as error:
        request_log.failed(error)
        yield msgspec.json.encode(render.ollama_error(error, request_log.id)) + b"\n"


@dataclass(frozen=True)
class OllamaGeneration(Generic[B]):
    family: ApiAdapter[B]
    renderer: render.OllamaRenderer
    field: str
    """Conversation or prompt."""
    state: AppState

    async def create(self, request: Request) -> ASGIApp:
        body, ignored, num_bytes = await read_body(self.family.schema, request)
        if not getattr(body, self.field):
            return await self._load_or_unload(body, request)
        context, disconnect_guard = context_of(request.scope), partial(while_connected, request.receive)
        params = await off_loop(num_bytes, partial(self.family.convert, body, ignored, num_bytes=num_bytes))
        call = await self.state.generation.begin(params, context, CascadeAttempt(disconnect_guard))
        context.body.release()
        if call.call.stream:
            lines = render.lines_of(call, self.renderer.stream(call.call, call.model.pieces))
            return render.JsonLines(lines, call.call.headers, call)
        whole = await whole_answer(call, self.renderer, disconnect_guard)
        return Response(whole, media_type="application/json", headers=dict(call.headers))

    async def _load_or_unload(self, body: B, request: Request) -> Response:
        """Unloading needs the scope admin, as everywhere."""
        identity = context_of(request.scope).identity
        chosen = await chosen_model(self.state.models, request, body.model)
        if body.unloads:
            if not identity.may(Scope.ADMIN):
                raise Forbidden(Scope.ADMIN.value)
            await self.state.keeping.unload(chosen.model)
        else:
            if chosen.model.engine.state is EngineState.FAILED and not chosen.model.may_retry():
                raise unavailable(chosen.model.engine.status())
            await self.state.keeping.load(chosen.model, replace=False)
        return json_response(self.renderer.unasked(chosen.name, "unload" if body.unloads else "load"))


_CHAT = render.OllamaRenderer(is_chat=True)
_GENERATE = render.OllamaRenderer(is_chat=False)
OLLAMA_CHAT = ApiAdapter(schema.OllamaChatBody, to_params.ollama_chat_params, _CHAT)
OLLAMA_GENERATE = ApiAdapter(schema.OllamaGenerateBody, to_params.ollama_generate_params, _GENERATE)
_route = partial(ApiRoute, access=INFERENCE, tag="Ollama", error=render.OllamaError)
_generation = partial(
    model_route,
    tag="Ollama",
    error=render.OllamaError,
    answer=render.OllamaLine,
    stream_form="Unless `stream` is false: an object on each line; the last one has `done` and the counts.",
    stream_media=render.NDJSON,
)
_admin_route = partial(_route, access=ADMIN)
_streamed = partial(
    _admin_route,
    "POST",
    answer=render.OllamaProgress,
    streams=True,
    stream_form="Unless `stream` is false: an object on each line; the last one is `success` or an error.",
    stream_media=render.NDJSON,
)


class OllamaRoutes:
    def __init__(self, state: AppState) -> None:
        self._chat = OllamaGeneration(OLLAMA_CHAT, _CHAT, "messages", state)
        self._generate = OllamaGeneration(OLLAMA_GENERATE, _GENERATE, "prompt", state)
        self._models = state.models
        self._store = state.store

    @_generation(f"{render.OLLAMA}/chat", body=schema.OllamaChatBody)
    async def chat(self, request: Request) -> ASGIApp:
        """Answer a conversation, in Ollama's format."""
        return await self._chat.create(request)

    @_generation(f"{render.OLLAMA}/generate", body=schema.OllamaGenerateBody)
    async def generate(self, request: Request) -> ASGIApp:
        """Answer a prompt, in Ollama's format."""
        return await self._generate.create(request)

    @_route("GET", f"{render.OLLAMA}/tags", answer=models.OllamaTags)
    async def tags(self, request: Request) -> Response:
        """List the served models."""
        allowed = context_of(request.scope).identity.allowed_models
        there, names = await available_models(self._models, allowed), self._models.names(allowed)
        served = [models.listed(self._models.choose(name, allowed)) for name in names]
        return json_response(models.OllamaTags([*served, *map(models.listed_file, there)]))

    @_route("GET", f"{render.OLLAMA}/ps", answer=models.OllamaProcesses)
    async def running(self, request: Request) -> Response:
        """List the models in memory, each under one of its names."""
        allowed = context_of(request.scope).identity.allowed_models
        chosen = [self._models.choose(name, allowed) for name in self._models.names(allowed)]
        first = {id(each.model): each for each in reversed(chosen) if each.adapter is None}
        ready = [each for each in reversed(first.values()) if each.model.engine.state is EngineState.READY]
        return json_response(
            models.OllamaProcesses([models.running(each, each.model.loaded()) for each in ready])
        )

    @_route(
        "POST",
        f"{render.OLLAMA}/show",
        body=schema.OllamaShowBody,
        answer=models.OllamaShown,
        errors=(404, 503),
    )
    async def show(self, request: Request) -> Response:
        """Describe a model and its capabilities."""
        body, ignored, _ = await read_body(schema.OllamaShowBody, request)
        name = body.model or body.name
        if name is None:
            raise missing("model")
        chosen = await chosen_model(self._models, request, name)
        return json_response(models.shown_model(chosen), headers=ignored.headers)

    @_route("GET", f"{render.OLLAMA}/version", answer=models.OllamaVersion)
    async def version(self, request: Request) -> Response:
        """Return the version of Ollama whose API this is."""
        return json_response(models.OllamaVersion("0.13.0"))  # VS Code requires 0.6.4

    @_streamed(f"{render.OLLAMA}/pull", body=schema.OllamaPullBody, errors=(404, 503))
    async def pull(self, request: Request) -> ASGIApp:
        """Download a model from the hub and serve it, under `--allow-pull`."""
        body, ignored, _ = await read_body(schema.OllamaPullBody, request)
        store = store_for(self._store, body.model_name, request)
        if body.stream is not False:
            lines = _pull_lines(store, body.model_name, request_log_of(request.scope))
            return render.JsonLines(lines, ignored.headers)
        await while_connected(request.receive, partial(pull_to_end, store, body.model_name))
        return json_response(render.DONE, headers=ignored.headers)

    @_streamed(f"{render.OLLAMA}/create", body=schema.OllamaCreateBody, errors=(404,))
    async def create(self, request: Request) -> Response:
        """Create a name for a model with a system prompt, parameters and messages."""
        body, ignored, _ = await read_body(schema.OllamaCreateBody, request)
        preset = to_params.preset_of(body)
        await self._derive(request, body.model_name, preset)
        if body.stream is False:
            return json_response(render.DONE, headers=ignored.headers)
        return Response(
            msgspec.json.encode(render.DONE) + b"\n", media_type=render.NDJSON, headers=ignored.headers
        )

    @_admin_route("POST", f"{render.OLLAMA}/copy", body=schema.OllamaCopyBody, errors=(404,))
    async def copy(self, request: Request) -> Response:
        """Give a model another name."""
        body, *_ = await read_body(schema.OllamaCopyBody, request)
        await self._derive(request, body.destination, Preset(base=body.source))
        return Response()

    @_admin_route("DELETE", f"{render.OLLAMA}/delete", body=schema.OllamaNamed, errors=(404, 409))
    async def delete(self, request: Request) -> Response:
        """Remove a downloaded model and its files, or remove a name."""
        body, *_ = await read_body(schema.OllamaNamed, request)
        await store_for(self._store, body.model_name, request).remove(body.model_name)
        return Response()

    @_admin_route("GET", f"{render.OLLAMA}/blobs/{{digest}}")
    async def has_blob(self, request: Request) -> Response:
        """Answer 404, because the server stores no blobs."""
        digest = shown(request.path_params["digest"])
        return json_response(render.OllamaError(f"The blob '{digest}' does not exist."), 404)

    @_admin_route("POST", f"{render.OLLAMA}/blobs/{{digest}}", errors=(400,))
    async def take_blob(self, request: Request) -> NoReturn:
        """Reject uploads of blobs."""
        raise InvalidRequest(f"{schema.NO_FILES[:1].upper()}{schema.NO_FILES[1:]}.")

    @_admin_route("POST", f"{render.OLLAMA}/push", errors=(400,))
    async def push(self, request: Request) -> NoReturn:
        """Reject uploads of models to a hub."""
        raise InvalidRequest("This server does not upload models.")

    async def _derive(self, request: Request, name: str, preset: Preset) -> None:
        store = store_for(self._store, name, request)
        base = (await chosen_model(self._models, request, preset.base)).model
        if preset.template:
            await in_thread(partial(base.write_template, preset.template, None, "", 0), is_slow=True)
        await store.derive(name, preset)


ROUTER = ApiRouter[AppState](OllamaRoutes, shape=render.OLLAMA_ERROR_SHAPE)
