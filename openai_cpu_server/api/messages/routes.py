"""Routes of the Messages API."""

from __future__ import annotations

from functools import partial

import msgspec

from openai_cpu_server.api.generation.route import ApiAdapter, BodyReader, CountRoute, GenerationRoute
from openai_cpu_server.api.messages.body import CountBody, MessagesBody
from openai_cpu_server.api.messages.render import (
    COUNT_TOKENS,
    MESSAGES,
    SHAPE,
    AnswerMessage,
    MessagesError,
    MessagesRenderer,
)
from openai_cpu_server.api.messages.to_params import messages_ask, prompt_ask
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.http.keys import CALLS, WORK
from openai_cpu_server.http.routes import GENERATION_ERRORS, ApiRoute, ApiRouter

MESSAGES_API = ApiAdapter(BodyReader(MessagesBody, messages_ask), MessagesRenderer())
COUNTED = BodyReader(CountBody, prompt_ask)
_EVENTS = (
    "With `stream`: `event: `, its name, `data: ` and an object whose `type` is that name, an empty line,"
    " and so on; the last one is `message_stop`."
)


class TokensCounted(msgspec.Struct, frozen=True):
    input_tokens: int


class MessagesRoutes:
    def __init__(self, parts: AppState) -> None:
        self.route = GenerationRoute(MESSAGES_API, parts.generation, parts.options)
        self.counting = CountRoute(
            COUNTED, parts.generation, lenient=parts.options.lenient, answer=TokensCounted
        )


_row = partial(ApiRoute[MessagesRoutes], access=CALLS, tag="Generation")
_rows = (
    _row(
        "POST",
        MESSAGES,
        lambda at: at.route.create,
        summary="Answer a conversation as Anthropic's API does, whole or as server-sent events",
        body=MessagesBody,
        answer=AnswerMessage,
        streams=True,
        stream_form=_EVENTS,
        error=MessagesError,
        errors=GENERATION_ERRORS,
    ),
    _row(
        "POST",
        COUNT_TOKENS,
        lambda at: at.counting.count,
        access=WORK,
        tag="Tokens",
        summary="The tokens of such a conversation",
        body=CountBody,
        answer=TokensCounted,
        error=MessagesError,
        errors=(404,),
    ),
)
ROOM = ApiRouter[AppState, MessagesRoutes](MessagesRoutes, _rows, shape=SHAPE)
