from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.route import ApiAdapter, GenerationRoute, count_tokens
from openai_cpu_server.api.messages import render, schema
from openai_cpu_server.api.messages.to_params import count_params, messages_params
from openai_cpu_server.api.state import AppState
from openai_cpu_server.http.keys import WORK
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, model_route

_RENDERER = render.MessagesRenderer()
MESSAGES_API = ApiAdapter(schema.MessagesBody, messages_params, _RENDERER)
COUNTED = ApiAdapter(schema.CountBody, count_params, _RENDERER)
_EVENTS = (
    "With `stream`: `event: `, its name, `data: ` and an object whose `type` is that name, an empty line,"
    " and so on; the last one is `message_stop`."
)


class TokensCounted(msgspec.Struct, frozen=True):
    input_tokens: int


class MessagesRoutes:
    def __init__(self, state: AppState) -> None:
        self._route = GenerationRoute(MESSAGES_API, state.generation)

    @model_route(
        render.MESSAGES,
        tag="Generation",
        body=schema.MessagesBody,
        answer=render.AnswerMessage,
        stream_form=_EVENTS,
        error=render.MessagesError,
    )
    async def create(self, request: Request) -> ASGIApp:
        """Answer a conversation in Anthropic's format, whole or as server-sent events."""
        return await self._route.create(request)

    @ApiRoute(
        "POST",
        render.COUNT_TOKENS,
        WORK,
        "Tokens",
        body=schema.CountBody,
        answer=TokensCounted,
        error=render.MessagesError,
        errors=(404,),
    )
    async def count(self, request: Request) -> Response:
        """Count the prompt tokens of a conversation in Anthropic's format."""
        return await count_tokens(request, COUNTED, self._route.service, TokensCounted)


ROUTER = ApiRouter[AppState](MessagesRoutes, shape=render.MESSAGES_ERROR_SHAPE)
