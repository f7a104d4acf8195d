"""Routes of `/v1/chat/completions`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from openai_cpu_server.api.chat.render import ChatCompletion, ChatRenderer
from openai_cpu_server.api.chat.schema import ChatBody
from openai_cpu_server.api.chat.socket import ChatExchange
from openai_cpu_server.api.chat.to_params import chat_params
from openai_cpu_server.api.generation.route import (
    ApiAdapter,
    BodyReader,
    CountRoute,
    GenerationRoute,
    InputTokens,
)
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.http.clients import SUBPROTOCOL
from openai_cpu_server.http.keys import CALLS, INFERENCE, WORK
from openai_cpu_server.http.routes import GENERATION_ERRORS, WEBSOCKET, ApiRoute, ApiRouter
from openai_cpu_server.http.sockets import SocketServer

CHAT = ApiAdapter(BodyReader(ChatBody, chat_params), ChatRenderer())


class ChatRoutes:
    def __init__(self, parts: AppState) -> None:
        self.route = GenerationRoute(CHAT, parts.generation, parts.options)
        self.counting = CountRoute(CHAT.reader, parts.generation, lenient=parts.options.lenient)
        exchange = partial(ChatExchange, self.route)
        self.socket = SocketServer(exchange, parts.sockets, subprotocol=SUBPROTOCOL)


_row = partial(ApiRoute[ChatRoutes], access=CALLS, tag="Generation")
_CHAT_ROW = _row(
    "POST",
    "/v1/chat/completions",
    lambda at: at.route.create,
    summary="Answer a conversation, whole or as server-sent events",
    body=ChatBody,
    answer=ChatCompletion,
    streams=True,
    errors=GENERATION_ERRORS,
    batched=lambda at: at.route.answer,
)
_COUNT_ROW = _row(
    "POST",
    "/v1/chat/completions/input_tokens",
    lambda at: at.counting.count,
    access=WORK,
    tag="Tokens",
    summary="The tokens of a chat's conversation",
    body=ChatBody,
    answer=InputTokens,
    errors=(404,),
)
_rows = (
    _CHAT_ROW,
    replace(_CHAT_ROW, path="/chat/completions", batched=None),  # llama-server has it without /v1, too
    _row(
        WEBSOCKET,
        "/v1/chat/completions",
        lambda at: at.socket.serve,
        access=INFERENCE,
        summary="The same over a WebSocket: one JSON object a message, many requests at once",
    ),
    _COUNT_ROW,
    _COUNT_ROW.at("/chat/completions/input_tokens"),
)
ROOM = ApiRouter[AppState, ChatRoutes](ChatRoutes, _rows)
