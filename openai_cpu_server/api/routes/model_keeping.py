"""`POST /v1/models/{id}/load` and `/unload`: models come into memory, and leave it. For administrators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.access import ADMIN
from openai_cpu_server.api.parts import ModelKeeping, Parts
from openai_cpu_server.api.routes.models import ModelCard, model_card
from openai_cpu_server.errors import InvalidRequest, ServerError
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.replies import json_response
from openai_cpu_server.http.routes import RouteRoom, RouteRow
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel

logger = logging.getLogger(__name__)

_ACCEPTED = 202
_AT_ONCE_S = 0.05
"""A caller who does not wait is told of failures that come so soon."""
_WORDS = {"true": True, "1": True, "false": False, "0": False}


class AlwaysLoaded:
    """For models whose engines somebody else starts and ends."""

    async def load(self, model: ServedModel, *, replace: bool) -> ServedModel:
        if replace:
            raise InvalidRequest("This server does not load models anew.", param="reload")
        model.loaded()
        return model

    async def unload(self, model: ServedModel) -> None:
        raise InvalidRequest("This server's models stay in memory.", param="id")


class ModelKeepingRoutes:
    def __init__(self, models: ModelRegistry, keeping: ModelKeeping) -> None:
        self._models = models
        self._keeping = keeping
        self._loads: set[asyncio.Task[ServedModel]] = set()

    async def load(self, request: Request) -> Response:
        """200 with the model's card when it is loaded; `?wait=false`: 202 at once, unless it is clear already
        that it cannot be. A caller who leaves does not end it."""
        waits, replaces = _flags(request, "wait", "reload")
        name, allowed = request.path_params["id"], context_of(request.scope).identity.allowed_models
        loading = asyncio.create_task(self._load(name, allowed, replace=replaces is True))
        self._loads.add(loading)
        loading.add_done_callback(self._done)
        if waits is False:
            await asyncio.wait([loading], timeout=_AT_ONCE_S)
            if loading.done():
                loading.result()
            card = model_card(self._models.choose(name, allowed))
            return json_response(card, _ACCEPTED)
        await asyncio.shield(loading)
        return json_response(model_card(self._models.choose(name, allowed)))

    async def unload(self, request: Request) -> Response:
        """200 with the model's card when its memory is free."""
        _flags(request)
        chosen = self._models.choose(
            request.path_params["id"], context_of(request.scope).identity.allowed_models
        )
        await self._keeping.unload(chosen.model)
        return json_response(model_card(chosen))

    async def _load(self, name: str, allowed: Collection[str] | None, *, replace: bool) -> ServedModel:
        return await self._keeping.load(self._models.choose(name, allowed).model, replace=replace)

    def _done(self, task: asyncio.Task[ServedModel]) -> None:
        """Whoever waits is told of failures, the log in any case."""
        self._loads.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            known = isinstance(error, ServerError)
            logger.error("a model was not loaded: %s", error, exc_info=None if known else error)


def _flags(request: Request, *names: str) -> list[bool | None]:
    """Query parameters that are true or false; None: it is not given. Raises InvalidRequest for others."""
    for name in request.query_params:
        if name not in names:
            raise InvalidRequest(f"Unknown parameter '{name}'.", param=name, code="unknown_parameter")
    return [_flag(name, request.query_params.get(name)) for name in names]


def _flag(name: str, text: str | None) -> bool | None:
    if text is None:
        return None
    if text not in _WORDS:
        message = f"Invalid value for '{name}': expected true or false."
        raise InvalidRequest(message, param=name, code="invalid_value")
    return _WORDS[text]


ROOM = RouteRoom[Parts, ModelKeepingRoutes](
    lambda parts: ModelKeepingRoutes(parts.models, parts.keeping),
    (
        RouteRow(
            "POST",
            "/v1/models/{id:path}/load",
            lambda at: at.load,
            access=ADMIN,
            summary="Load it into memory, or anew if its file has changed; the answer comes when that is"
            " done",
            tag="Models",
            query={
                "wait": {
                    "type": "boolean",
                    "default": True,
                    "description": "false: the answer is 202, at once",
                },
                "reload": {
                    "type": "boolean",
                    "default": False,
                    "description": "true: also an unchanged file",
                },
            },
            answer=ModelCard,
            errors=(503,),
        ),
        RouteRow(
            "POST",
            "/v1/models/{id:path}/unload",
            lambda at: at.unload,
            access=ADMIN,
            summary="Free its memory, if it has no requests; the next one loads it again",
            tag="Models",
            answer=ModelCard,
            errors=(409,),
        ),
    ),
)
