"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.identity import identity_of
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.models.registry import Chosen, ModelRegistry


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    context_length: int
    """Tokens that one request can have, prompt and output together."""
    context_trained: int
    parameters: int
    size_bytes: int
    vocab_size: int
    architecture: str
    description: str


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "openai-cpu-server"
    parent: str | None = None
    """The model itself, where this is one with an adapter."""
    meta: ModelMeta | None
    """None until the model is loaded."""


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


class ModelRoutes:
    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def list(self, request: Request) -> Response:
        allowed = identity_of(request.scope).allowed_models
        names = self._models.names(allowed)
        return json_response(ModelList([_card(self._models.choose(name, allowed)) for name in names]))

    async def one(self, request: Request) -> Response:
        name, allowed = request.path_params["id"], identity_of(request.scope).allowed_models
        return json_response(_card(self._models.choose(name, allowed)))


def json_response(
    value: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    body = msgspec.json.encode(value)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def _card(chosen: Chosen) -> ModelCard:
    model, info = chosen.model, chosen.model.engine.info
    return ModelCard(
        id=chosen.name,
        created=model.created,
        parent=None if chosen.adapter is None else model.name,
        meta=_meta(info) if info else None,
    )


def _meta(info: ModelInfo) -> ModelMeta:
    return ModelMeta(
        context_length=info.context_limit,
        context_trained=info.context_trained,
        parameters=info.num_parameters,
        size_bytes=info.file_bytes,
        vocab_size=info.vocab_size,
        architecture=info.architecture,
        description=info.description,
    )
