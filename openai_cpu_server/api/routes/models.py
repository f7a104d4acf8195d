"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.access import INFERENCE
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.replies import json_response as json_response
from openai_cpu_server.http.routes import RouteRoom, RouteRow
from openai_cpu_server.models.registry import Chosen, ModelRegistry
from openai_cpu_server.models.routing.router import Router


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    context_length: int
    """Tokens that one request can have, prompt and output together."""
    context_trained: int
    parameters: int
    size_bytes: int
    vocab_size: int
    architecture: str
    description: str
    quantisation: str | None
    """What the file states, such as `q4_k_m`."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "openai-cpu-server"
    parent: str | None
    """The model itself, where this is one with an adapter."""
    kind: str
    """`generates`, `embeds`, `reranks`, or `routes`: it chooses another model for each request."""
    state: str
    """`ready`, `loading`, `asleep` (a request loads it), `failed`, or another that `/health` knows."""
    reason: str | None
    """Why it is not ready, if there is something to say."""
    memory_bytes: int | None
    """Resident memory of its process; None: there is none."""
    meta: ModelMeta | None
    """None while nothing is known: the only model is loading, or the file cannot be read; and of a router."""
    routes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Only a router's card has this: by route the name of a model."""


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


class ModelRoutes:
    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def list(self, request: Request) -> Response:
        allowed = context_of(request.scope).identity.allowed_models
        cards = [model_card(self._models.choose(name, allowed)) for name in self._models.names(allowed)]
        routers = [(name, self._models.router(name, allowed)) for name in self._models.router_names(allowed)]
        cards += [router_card(name, router) for name, router in routers if router is not None]
        return json_response(ModelList(cards))

    async def one(self, request: Request) -> Response:
        name, allowed = request.path_params["id"], context_of(request.scope).identity.allowed_models
        if (router := self._models.router(name, allowed)) is not None:
            return json_response(router_card(name, router))
        return json_response(model_card(self._models.choose(name, allowed)))


def model_card(chosen: Chosen) -> ModelCard:
    model, status = chosen.model, chosen.model.engine.status()
    info = model.engine.info
    return ModelCard(
        id=chosen.name,
        created=model.created,
        parent=None if chosen.adapter is None else model.name,
        kind=model.kind.value,
        state=status.state.value,
        reason=status.reason,
        memory_bytes=status.engine_rss_bytes or None,
        meta=_meta(info, model.quantisation) if info else None,
    )


def router_card(name: str, router: Router) -> ModelCard:
    return ModelCard(
        id=name,
        created=router.created,
        parent=None,
        kind="routes",
        state="ready",
        reason=None,
        memory_bytes=None,
        meta=None,
        routes=router.options.routes,
    )


def _meta(info: ModelInfo, quantisation: str | None) -> ModelMeta:
    return ModelMeta(
        context_length=info.context_limit,
        context_trained=info.context_trained,
        parameters=info.num_parameters,
        size_bytes=info.file_bytes,
        vocab_size=info.vocab_size,
        architecture=info.architecture,
        description=info.description,
        quantisation=quantisation,
    )


ROOM = RouteRoom[Parts, ModelRoutes](
    lambda parts: ModelRoutes(parts.models),
    (
        RouteRow(
            "GET",
            "/v1/models",
            lambda at: at.list,
            access=INFERENCE,
            summary="The names that are served",
            tag="Models",
            answer=ModelList,
        ),
        RouteRow(
            "GET",
            "/v1/models/{id:path}",
            lambda at: at.one,
            access=INFERENCE,
            summary="One of them",
            tag="Models",
            answer=ModelCard,
        ),
    ),
)
