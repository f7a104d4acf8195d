"""`POST /v1/models/pull` and `DELETE /v1/models/{id}`, for administrators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.admin.models import ModelCard, model_card
from openai_cpu_server.api.generation.renderer import Chunk, events
from openai_cpu_server.api.generation.route import NO_STORE_HEADERS, event_source, while_connected
from openai_cpu_server.api.parts import AppState, ModelStore
from openai_cpu_server.errors import ModelNotFound, PullNotAllowed
from openai_cpu_server.http.body import small_body
from openai_cpu_server.http.context import context_of, ticket_of
from openai_cpu_server.http.errors import error_object, json_response
from openai_cpu_server.http.keys import ADMIN
from openai_cpu_server.http.parse import Body, parse
from openai_cpu_server.http.routes import ApiRoute, ApiRouter


class PullBody(Body):
    model: Annotated[str, Field(min_length=1, max_length=512)]
    """`hf:OWNER/REPO[:QUANT]` or a name listed by the command `models`. It becomes the name of the model."""
    stream: bool = False


class ModelDeleted(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "model"


def store_for(store: ModelStore | None, name: str, request: Request) -> ModelStore:
    """Return the store. Raises PullNotAllowed, and ModelNotFound for a name that the key may not use."""
    if store is None:
        raise PullNotAllowed
    allowed = context_of(request.scope).identity.allowed_models
    if allowed is not None and name not in allowed:
        raise ModelNotFound(name)
    return store


async def to_its_end(store: ModelStore, name: str) -> None:
    async for _ in store.pull(name):
        pass


class StoreRoutes:
    def __init__(self, parts: AppState) -> None:
        self._models = parts.models
        self._store = parts.store
        self._options = parts.options

    @ApiRoute(
        "POST",
        "/v1/models/pull",
        ADMIN,
        "Models",
        body=PullBody,
        answer=ModelCard,
        streams=True,
        stream_form="With `stream`: an event for each step; the last one is `success` or an error.",
        errors=(404, 503),
    )
    async def pull(self, request: Request) -> ASGIApp:
        """Download a model from the hub and serve it, under `--allow-pull`."""
        body, ignored = parse(PullBody, await small_body(request), lenient=self._options.lenient)
        store = store_for(self._store, body.model, request)
        if body.stream:
            told = self._told(store, body.model, request)
            headers = {**NO_STORE_HEADERS, **ignored.headers}
            return event_source(told, headers, keep_alive_s=self._options.keep_alive_s)
        await while_connected(request.receive, partial(to_its_end, store, body.model))
        return json_response(model_card(self._models.choose(body.model, None)), headers=ignored.headers)

    @ApiRoute("DELETE", "/v1/models/{id:path}", ADMIN, "Models", answer=ModelDeleted, errors=(404, 409))
    async def delete(self, request: Request) -> Response:
        """Remove a downloaded model and its files, or remove a name."""
        name = request.path_params["id"]
        await store_for(self._store, name, request).remove(name)
        return json_response(ModelDeleted(name))

    async def _told(self, store: ModelStore, name: str, request: Request) -> AsyncIterator[bytes]:
        """The status is already sent, so a failure is in the last event."""
        try:
            async for step in store.pull(name):
                yield events([Chunk(msgspec.json.encode(step))])
        except Exception as error:
            ticket = ticket_of(request.scope)
            ticket.failed(error)
            yield events([Chunk(msgspec.json.encode(error_object(error, request_id=ticket.id)))])


ROOM = ApiRouter[AppState](StoreRoutes)
