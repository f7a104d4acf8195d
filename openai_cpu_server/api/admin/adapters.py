from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.state import AppState, chosen_model, read_body, response_of
from openai_cpu_server.config.adapters import ADAPTER_NAME, LARGEST_SCALE, AdapterSource
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus
from openai_cpu_server.errors import AdapterNotAllowed, AdapterNotFound, wrong
from openai_cpu_server.http.body import in_thread, small_body
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import ADMIN
from openai_cpu_server.http.parse import Body
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.served import ServedModel


class AdapterBody(Body):
    """Exactly one of `path` and `source`."""

    model: str | None = None
    name: Annotated[str, Field(pattern=f"^{ADAPTER_NAME.pattern}$")]
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Path below the server's `--adapter-dir`."""
    source: Annotated[str, Field(pattern=r"^hf:[^/:\s]+/[^/:\s]+/[^:\s]+$", max_length=512)] | None = None
    scale: Annotated[float, Field(ge=-LARGEST_SCALE, le=LARGEST_SCALE)] | None = None


class AdapterCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Value of `model` in requests: `MODEL:NAME`."""
    object: str = "adapter"
    model: str
    name: str
    path: str
    scale: float
    state: str
    """`ready`, `failed` at the start, or `loading` while the engine restarts."""
    reason: str | None
    sha256: str
    rank: int | None
    """Set, like the next two, if ready."""
    tensors: int | None
    size_bytes: int | None


class AdapterList(msgspec.Struct, frozen=True):
    data: list[AdapterCard]
    object: str = "list"


class AdapterDeleted(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "adapter"


def no_adapters(source: AdapterSource) -> Adapter:
    """Refuse as a server without adapters. Raises AdapterNotAllowed."""
    raise AdapterNotAllowed("This server loads no adapters over the API.")


_route = partial(ApiRoute, access=ADMIN, tag="Models")


class AdapterRoutes:
    def __init__(self, state: AppState) -> None:
        self._models = state.models
        self._find = state.find_adapter

    @_route("POST", "/v1/adapters", body=AdapterBody, answer=AdapterCard, errors=(404,))
    async def load(self, request: Request) -> Response:
        """Load a LoRA adapter, or replace the one of the same name.

        Until the answer, requests get the previous one.
        """
        body, ignored, _ = await read_body(AdapterBody, request, small_body)
        model = await self._model(body.model, request)
        model.loaded()
        adapter = await in_thread(partial(self._find, _source(body)), is_slow=True)
        status = await model.engine.load_adapter(adapter)
        return json_response(_card(model, status), headers=ignored.headers)

    @_route("GET", "/v1/adapters", answer=AdapterList)
    async def list(self, request: Request) -> Response:
        """List the adapters of all models that the key may use."""
        allowed = context_of(request.scope).identity.allowed_models
        models = [one for one in self._models if allowed is None or one.name in allowed]
        cards = [_card(model, status) for model in models for status in model.engine.adapters()]
        return json_response(AdapterList(cards))

    @_route("DELETE", "/v1/adapters/{id:path}", answer=AdapterDeleted)
    async def unload(self, request: Request) -> Response:
        """Unload the adapter `MODEL:NAME`, or `NAME` of the first model. Running calls keep it."""
        base, colon, name = request.path_params["id"].rpartition(":")
        model = await self._model(base if colon else None, request)
        if not model.engine.unload_adapter(name):
            names = [status.adapter.name for status in model.engine.adapters()]
            raise AdapterNotFound(name, names, param="id")
        return json_response(AdapterDeleted(f"{model.name}:{name}"))

    async def _model(self, name: str | None, request: Request) -> ServedModel:
        chosen = await chosen_model(self._models, request, name or None)
        if chosen.adapter is not None:
            raise wrong(f"'{chosen.name}' is a model with an adapter; name the model itself.", "model")
        return chosen.model


def _source(body: AdapterBody) -> AdapterSource:
    if (body.path is None) == (body.source is None):
        raise wrong("Give exactly one of 'path' and 'source'.", "path")
    if body.scale == 0:
        raise wrong("Invalid value for 'scale': 0 is the model without the adapter.", "scale")
    path = body.path if body.source is None else body.source
    assert path is not None, "one of the two is set"
    if body.source is None and path.startswith("hf:"):
        raise wrong("'source' must name a file of the hub.", "path")
    return AdapterSource(body.name, path, 1.0 if body.scale is None else body.scale)


def _card(model: ServedModel, status: AdapterStatus) -> AdapterCard:
    adapter, loaded = status.adapter, status.loaded
    return response_of(
        AdapterCard,
        adapter,
        id=f"{model.name}:{adapter.name}",
        model=model.name,
        state=status.state.value,
        reason=status.reason,
        sha256=adapter.digest,
        rank=loaded.rank if loaded else None,
        tensors=loaded.num_tensors if loaded else None,
        size_bytes=loaded.size_bytes if loaded else None,
    )


ROUTER = ApiRouter[AppState](AdapterRoutes)
