from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from openai_cpu_server.api.chat import schema
from openai_cpu_server.api.chat.render import ChatCompletion, ChatRenderer
from openai_cpu_server.api.chat.socket import ChatExchange
from openai_cpu_server.api.chat.to_params import chat_params
from openai_cpu_server.api.generation import route
from openai_cpu_server.api.state import AppState
from openai_cpu_server.http.keys import INFERENCE, SUBPROTOCOL, WORK
from openai_cpu_server.http.routes import WEBSOCKET, ApiRoute, ApiRouter, model_route
from openai_cpu_server.http.sockets import SocketServer

CHAT = route.ApiAdapter(schema.ChatBody, chat_params, ChatRenderer())


class ChatRoutes:
    def __init__(self, state: AppState) -> None:
        self.route = route.GenerationRoute(CHAT, state.generation)
        exchange = partial(ChatExchange, self.route)
        self._socket = SocketServer(exchange, state.sockets, subprotocol=SUBPROTOCOL)

    @model_route(
        "/v1/chat/completions",
        tag="Generation",
        aliases=("/chat/completions",),  # of llama-server
        body=schema.ChatBody,
        answer=ChatCompletion,
        batched=lambda at: at.route.answer,
    )
    async def create(self, request: Request) -> ASGIApp:
        """Answer a conversation, whole or as server-sent events."""
        return await self.route.create(request)

    @ApiRoute(WEBSOCKET, "/v1/chat/completions", INFERENCE, "Generation")
    async def socket(self, websocket: WebSocket) -> None:
        """Answer conversations over a WebSocket: one JSON object per message, many requests at once."""
        await self._socket.serve(websocket)

    @ApiRoute(
        "POST",
        "/v1/chat/completions/input_tokens",
        WORK,
        "Tokens",
        aliases=("/chat/completions/input_tokens",),
        body=schema.ChatBody,
        answer=route.InputTokens,
        errors=(404,),
    )
    async def count(self, request: Request) -> Response:
        """Count the prompt tokens of a conversation."""
        return await route.count_tokens(request, CHAT, self.route.service)


ROUTER = ApiRouter[AppState](ChatRoutes)
