"""The routes of chat completions."""

from __future__ import annotations

from functools import partial

from openai_cpu_server.api.asking.route import BodyReader, CountRoute, Family, GenerationRoute, InputTokens
from openai_cpu_server.api.chat.as_ask import chat_ask
from openai_cpu_server.api.chat.body import ChatBody
from openai_cpu_server.api.chat.render import ChatCompletion, ChatRenderer
from openai_cpu_server.api.chat.socket import ChatExchange
from openai_cpu_server.api.parts import ServerParts
from openai_cpu_server.http.clients import SUBPROTOCOL
from openai_cpu_server.http.keys import CALLS, INFERENCE, WORK
from openai_cpu_server.http.routes import GENERATION_ERRORS, WEBSOCKET, RouteRoom, RouteRow
from openai_cpu_server.http.sockets import SocketServer

CHAT = Family(BodyReader(ChatBody, chat_ask), ChatRenderer())


class ChatRoutes:
    def __init__(self, parts: ServerParts) -> None:
        self.route = GenerationRoute(CHAT, parts.generation, parts.options)
        self.counting = CountRoute(CHAT.reader, parts.models, lenient=parts.options.lenient)
        exchange = partial(ChatExchange, self.route)
        self.socket = SocketServer(exchange, parts.sockets, subprotocol=SUBPROTOCOL)


ROOM = RouteRoom[ServerParts, ChatRoutes](
    ChatRoutes,
    (
        RouteRow(
            "POST",
            "/v1/chat/completions",
            lambda at: at.route.create,
            access=CALLS,
            summary="Answer a conversation, whole or as server-sent events",
            tag="Generation",
            body=ChatBody,
            answer=ChatCompletion,
            streams=True,
            errors=GENERATION_ERRORS,
            batched=lambda at: at.route.answer,
        ),
        RouteRow(
            WEBSOCKET,
            "/v1/chat/completions",
            lambda at: at.socket.serve,
            access=INFERENCE,
            summary="The same over a WebSocket: one JSON object a message, many requests at once",
            tag="Generation",
        ),
        RouteRow(
            "POST",
            "/v1/chat/completions/input_tokens",
            lambda at: at.counting.count,
            access=WORK,
            summary="The tokens of a chat's conversation",
            tag="Tokens",
            body=ChatBody,
            answer=InputTokens,
            errors=(404,),
        ),
    ),
)
