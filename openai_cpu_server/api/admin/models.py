from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import Annotated

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.renderer import Chunk, events
from openai_cpu_server.api.generation.route import event_source, while_connected
from openai_cpu_server.api.model_card import ModelCard, input_modalities, model_card
from openai_cpu_server.api.state import AppState, ModelStore, chosen_model, pull_to_end, read_body, store_for
from openai_cpu_server.contract.engine import EngineState, unavailable
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import InvalidRequest, ServerError, wrong_value
from openai_cpu_server.http.body import small_body
from openai_cpu_server.http.context import context_of, request_log_of
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.http.errors import json_response as json_response
from openai_cpu_server.http.keys import ADMIN, INFERENCE
from openai_cpu_server.http.parse import Body
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.registry import AvailableModel, available_models
from openai_cpu_server.models.routing.router import ModelRouter
from openai_cpu_server.models.served import ServedModel

logger = logging.getLogger(__name__)

CODEX = "client_version"
_ACCEPTED = 202
_AT_ONCE_S = 0.05
"""Failures this early reach a caller that does not wait."""
_WORDS = {"true": True, "1": True, "false": False, "0": False}


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


class TruncationPolicy(msgspec.Struct, frozen=True):
    limit: int
    mode: str = "tokens"


class CodexModel(msgspec.Struct, frozen=True, kw_only=True):
    slug: str
    display_name: str
    description: str
    priority: int
    """Lower values come first."""
    context_window: int | None
    truncation_policy: TruncationPolicy
    supported_reasoning_levels: list[dict[str, str]]
    supports_reasoning_summaries: bool
    base_instructions: str
    shell_type: str = "shell_command"
    apply_patch_tool_type: str = "freeform"
    supports_parallel_tool_calls: bool = True
    support_verbosity: bool = False
    input_modalities: tuple[str, ...] = ("text",)
    experimental_supported_tools: tuple[()] = ()
    visibility: str = "list"
    supported_in_api: bool = True


class CodexModelList(msgspec.Struct, frozen=True):
    """Codex reads `models`; older versions and other clients read `data`."""

    models: Sequence[CodexModel]
    data: list[ModelCard]
    object: str = "list"


_INSTRUCTIONS = """\
You are a coding agent that works in the user's folder.
- Look at files before you change them. Use the shell to list, search and read files, and to run tests.
- Change files with the tool `apply_patch`. Change as little as the task needs.
- When a command or a patch fails, read what it says and try another way.
- When the task is done, say in a few words what you did."""
"""Replaces Codex' own instructions, whose thousands of tokens take a CPU a minute."""
_EFFORTS = {"low": "Thinks little", "medium": "Thinks more", "high": "Thinks as much as it likes"}
_RESULT_TOKENS = 10_000


class PullBody(Body):
    model: Annotated[str, Field(min_length=1, max_length=512)]
    """`hf:OWNER/REPO[:QUANT]` or a name of the command `models`, also the model's later name."""
    stream: bool = False


class ModelDeleted(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "model"


async def _pull_events(store: ModelStore, name: str, request: Request) -> AsyncIterator[bytes]:
    """Report a failure in the last event, because the status is already sent."""
    try:
        async for step in store.pull(name):
            yield events([Chunk(msgspec.json.encode(step))])
    except Exception as error:
        request_log = request_log_of(request.scope)
        request_log.failed(error)
        yield events([Chunk(msgspec.json.encode(error_object(error, request_id=request_log.id)))])


class AlwaysLoaded:
    async def load(self, model: ServedModel, *, replace: bool) -> ServedModel:
        if replace:
            raise InvalidRequest("This server does not reload models.", param="reload")
        if model.engine.state is not EngineState.READY:
            raise unavailable(model.engine.status())
        return model

    async def unload(self, model: ServedModel) -> None:
        raise InvalidRequest("This server's models stay in memory.", param="id")


_route = partial(ApiRoute, access=INFERENCE, tag="Models", answer=ModelCard)


class ModelRoutes:
    def __init__(self, state: AppState) -> None:
        self._models = state.models
        self._keeping = state.keeping
        self._store = state.store
        self._options = state.options
        self._loads: set[asyncio.Task[ServedModel]] = set()

    @_route(
        "POST",
        "/v1/models/pull",
        access=ADMIN,
        body=PullBody,
        streams=True,
        stream_form="With `stream`: an event for each step; the last one is `success` or an error.",
        errors=(404, 503),
    )
    async def pull(self, request: Request) -> ASGIApp:
        """Download a model from the hub and serve it, under `--allow-pull`."""
        body, ignored, _ = await read_body(PullBody, request, small_body)
        store = store_for(self._store, body.model, request)
        if body.stream:
            progress = _pull_events(store, body.model, request)
            return event_source(progress, ignored.headers, keep_alive_s=self._options.keep_alive_s)
        await while_connected(request.receive, partial(pull_to_end, store, body.model))
        return json_response(model_card(self._models.choose(body.model, None)), headers=ignored.headers)

    @_route("DELETE", "/v1/models/{id:path}", access=ADMIN, answer=ModelDeleted, errors=(404, 409))
    async def delete(self, request: Request) -> Response:
        """Remove a downloaded model and its files, or remove a name."""
        name = request.path_params["id"]
        await store_for(self._store, name, request).remove(name)
        return json_response(ModelDeleted(name))

    @_route(
        "GET",
        "/v1/models",
        aliases=("/models",),  # of llama-server
        query={CODEX: {"type": "string", "description": "Codex': the answer has its catalog, `models`, too"}},
        answer=ModelList,
    )
    async def list(self, request: Request) -> Response:
        """List the models."""
        allowed = context_of(request.scope).identity.allowed_models
        available = await available_models(self._models, allowed)
        served = [self._models.choose(name, allowed) for name in self._models.names(allowed)]
        cards = [model_card(chosen) for chosen in served]
        routers = [(name, self._models.router(name, allowed)) for name in self._models.router_names(allowed)]
        cards += [router_card(name, router, allowed) for name, router in routers if router is not None]
        cards += map(available_card, available)
        if CODEX not in request.query_params:
            return json_response(ModelList(cards))
        named = [(one.name, one.model) for one in served if one.model.kind is ModelKind.GENERATES]
        names = [one.name for one in available if one.kind is ModelKind.GENERATES]
        codex = [codex_model(name, place, model) for place, (name, model) in enumerate(named)]
        return json_response(
            CodexModelList([*codex, *(codex_model(name, len(named)) for name in names)], cards)
        )

    @_route("GET", "/v1/models/{id:path}")
    async def one(self, request: Request) -> Response:
        """Describe a model."""
        name, allowed = request.path_params["id"], context_of(request.scope).identity.allowed_models
        if (router := self._models.router(name, allowed)) is not None:
            return json_response(router_card(name, router, allowed))
        if not self._models.has(name):
            for available in await available_models(self._models, allowed):
                if available.name == name:
                    return json_response(available_card(available))
        return json_response(model_card(self._models.choose(name, allowed)))

    @_route(
        "POST",
        "/v1/models/{id:path}/load",
        access=ADMIN,
        query={
            "wait": {"type": "boolean", "default": True, "description": "false: answer 202 at once"},
            "reload": {
                "type": "boolean",
                "default": False,
                "description": "true: load an unchanged file again",
            },
        },
        errors=(503,),
    )
    async def load(self, request: Request) -> Response:
        """Load a model into memory, or reload it if its file has changed.

        `?wait=false` answers at once, unless loading fails immediately. Loading continues if the caller
        leaves.
        """
        waits, replaces = _flags(request, "wait", "reload")
        name, allowed = request.path_params["id"], context_of(request.scope).identity.allowed_models

        async def load() -> ServedModel:
            chosen = await chosen_model(self._models, request, name)
            return await self._keeping.load(chosen.model, replace=replaces is True)

        loading = asyncio.create_task(load())
        self._loads.add(loading)
        loading.add_done_callback(self._done)
        if waits is False:
            await asyncio.wait([loading], timeout=_AT_ONCE_S)
            if loading.done():
                loading.result()
            return json_response(model_card(self._models.choose(name, allowed)), _ACCEPTED)
        await asyncio.shield(loading)
        return json_response(model_card(self._models.choose(name, allowed)))

    @_route("POST", "/v1/models/{id:path}/unload", access=ADMIN, errors=(409,))
    async def unload(self, request: Request) -> Response:
        """Free the memory of a model without requests. The next request loads it again."""
        _flags(request)
        chosen = await chosen_model(self._models, request, request.path_params["id"])
        await self._keeping.unload(chosen.model)
        return json_response(model_card(chosen))

    def _done(self, task: asyncio.Task[ServedModel]) -> None:
        """Log a failure, which waiting callers get too."""
        self._loads.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            trace = None if isinstance(error, ServerError) else error
            logger.error("a model was not loaded: %s", error, exc_info=trace)


def available_card(model: AvailableModel) -> ModelCard:
    is_sound = model.why_not is None
    return ModelCard(
        id=model.name,
        created=model.changed_s,
        parent=None,
        kind=(model.kind or ModelKind.GENERATES).value,
        state=(EngineState.ASLEEP if is_sound else EngineState.FAILED).value,
        reason=model.why_not,
        memory_bytes=None,
        meta=None,
    )


def codex_model(name: str, place: int, model: ServedModel | None = None) -> CodexModel:
    info = model.engine.info if model is not None else None
    thinks = model is not None and model.thinking is not None
    context = info.context_limit if info else None
    return CodexModel(
        slug=name,
        display_name=name,
        description=info.description if info else "",
        priority=place,
        context_window=context,
        truncation_policy=TruncationPolicy(min(_RESULT_TOKENS, (context or _RESULT_TOKENS) // 4)),
        supported_reasoning_levels=(
            [{"effort": effort, "description": text} for effort, text in _EFFORTS.items()] if thinks else []
        ),
        supports_reasoning_summaries=thinks,
        base_instructions=_INSTRUCTIONS,
        input_modalities=("text",) if model is None else input_modalities(model),
    )


def router_card(name: str, router: ModelRouter, allowed: Collection[str] | None) -> ModelCard:
    routes = router.options.routes.items()
    return ModelCard(
        id=name,
        created=router.created,
        parent=None,
        kind="routes",
        state="ready",
        reason=None,
        memory_bytes=None,
        meta=None,
        routes={route: target for route, target in routes if allowed is None or target in allowed},
    )


def _flags(request: Request, *names: str) -> list[bool | None]:
    for name in request.query_params:
        if name not in names:
            raise InvalidRequest(f"Unknown parameter '{name}'.", param=name, code="unknown_parameter")
    texts = [request.query_params.get(name) for name in names]
    for name, text in zip(names, texts, strict=True):
        if text not in (None, *_WORDS):
            raise wrong_value(name, "true or false")
    return [None if text is None else _WORDS[text] for text in texts]


ROUTER = ApiRouter[AppState](ModelRoutes)
