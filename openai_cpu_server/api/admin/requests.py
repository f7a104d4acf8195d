"""`GET /v1/requests`: who is being served and who waits. `DELETE /v1/requests/{id}` ends one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.parts import ServerParts
from openai_cpu_server.contract.engine import LiveRequest
from openai_cpu_server.errors import RequestNotFound
from openai_cpu_server.http.clients import Client
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import INFERENCE, Identity
from openai_cpu_server.http.routes import RouteRoom, RouteRow
from openai_cpu_server.models.registry import ModelRegistry


class RequestCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """The id of the API's object, and the number of its sequence: `chatcmpl-123/0`."""
    object: str = "request"
    priority: str
    state: str
    """`waiting` or `running`."""
    prompt_tokens: int
    output_tokens: int
    """So far."""
    age_s: float
    client: str
    """The name of its API key, else the body's `user`; else what tells it apart: a part of its key's digest,
    and, for an administrator's key alone, its address."""
    position: int | None
    """Its place if it waits near the head of the queue: 1 is next."""
    first_token_ms: float | None
    """Estimate from now, where there is a position; of a request that embeds: until its first vector."""
    inputs: int | None
    """How many texts it embeds or scores; None: it generates."""
    inputs_done: int | None


class RequestList(msgspec.Struct, frozen=True):
    data: list[RequestCard]
    object: str = "list"


class Cancelled(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: str = "request"


class RequestRoutes:
    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def list(self, request: Request) -> Response:
        """Lists those of the caller's key; an administrator sees all."""
        identity = context_of(request.scope).identity
        return json_response(RequestList([_card(live, identity) for live in self._visible(identity)]))

    async def cancel(self, request: Request) -> Response:
        """Ends the whole API call, also where the id is that of one of its sequences."""
        name: str = request.path_params["id"]
        visible = self._visible(context_of(request.scope).identity)
        if not any(name in (live.id, live.id.partition("/")[0]) for live in visible):
            raise RequestNotFound(name)
        for model in self._models:
            model.engine.cancel(name)
        return json_response(Cancelled(name))

    def _visible(self, identity: Identity) -> Sequence[LiveRequest]:
        live = [one for model in self._models for one in model.engine.requests()]
        return [one for one in live if Client.of_label(one.client).is_owned_by(identity)]


def _card(live: LiveRequest, seen_by: Identity) -> RequestCard:
    return RequestCard(
        id=live.id,
        priority=live.priority.label,
        state=live.state.value,
        prompt_tokens=live.prompt_tokens,
        output_tokens=live.output_tokens,
        age_s=round(live.age_s, 3),
        client=Client.of_label(live.client).shown_to(seen_by),
        position=live.position,
        inputs=live.num_inputs,
        inputs_done=None if live.num_inputs is None else live.num_embedded,
        first_token_ms=None if live.first_token_ms is None else round(live.first_token_ms, 1),
    )


_row = partial(RouteRow[RequestRoutes], access=INFERENCE, tag="Requests")
_rows = (
    _row("GET", "/v1/requests", lambda at: at.list, summary="Requests that run or wait", answer=RequestList),
    _row("DELETE", "/v1/requests/{id:path}", lambda at: at.cancel, summary="End one", answer=Cancelled),
)
ROOM = RouteRoom[ServerParts, RequestRoutes](lambda parts: RequestRoutes(parts.models), _rows)
