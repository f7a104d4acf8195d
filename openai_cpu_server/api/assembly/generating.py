"""The routes that ask models, and who else goes their way: WebSockets, and rows of batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from starlette.routing import BaseRoute, Route, WebSocketRoute

from openai_cpu_server.api.asking.generation import GenerationService
from openai_cpu_server.api.assembly.parts import Parts
from openai_cpu_server.api.chat.as_ask import CHAT
from openai_cpu_server.api.completions.as_ask import COMPLETIONS
from openai_cpu_server.api.error_shapes import COUNT_TOKENS, MESSAGES
from openai_cpu_server.api.generate.as_ask import GENERATE
from openai_cpu_server.api.generate.batch import GenerateBatchRoute, ModelInfoRoute
from openai_cpu_server.api.messages import as_ask as messages_api
from openai_cpu_server.api.routes.counting import CountRoute
from openai_cpu_server.api.routes.generation import GenerationRoute
from openai_cpu_server.api.routes.pooling import EMBEDDINGS, RERANKING, PoolingRoute
from openai_cpu_server.api.routes.responses.background import Background
from openai_cpu_server.api.routes.responses.create import ResponsesRoute
from openai_cpu_server.api.routes.responses.making import Maker
from openai_cpu_server.api.routes.responses.socket import ResponsesSocket
from openai_cpu_server.api.routes.responses.stored import StoredResponses
from openai_cpu_server.api.routes.responses.turns import TurnReader
from openai_cpu_server.api.routes.websocket import SocketRoute

Asked = GenerationRoute | PoolingRoute[Any] | ResponsesRoute


class Generating(NamedTuple):
    rows: Mapping[str, Asked]
    """What the rows of batches may ask, by path."""
    routes: list[BaseRoute]
    sockets: list[BaseRoute]
    settle: Callable[[], Awaitable[None]]
    """Ends what is made in the background."""


def generating(parts: Parts) -> Generating:
    models, options = parts.models, parts.options
    service = GenerationService(models, options, parts.recall)
    chat = GenerationRoute(CHAT, service, options)
    completions = GenerationRoute(COMPLETIONS, service, options)
    reranking = PoolingRoute(RERANKING, models, options)
    responses = _responses(parts, service)
    rows: dict[str, Asked] = {
        "/v1/chat/completions": chat,
        "/v1/completions": completions,
        "/v1/responses": responses.route,
        "/v1/embeddings": PoolingRoute(EMBEDDINGS, models, options),
        "/v1/rerank": reranking,
    }
    routes = [
        *(Route(path, route.create, methods=["POST"]) for path, route in rows.items()),
        *(Route(path, reranking.create, methods=["POST"]) for path in ("/rerank", "/v2/rerank")),
        *responses.others,
        *_message_routes(parts, service),
        *_old_routes(parts, service),
    ]
    socket = SocketRoute(
        chat,
        keys=parts.keys,
        limits=parts.limits,
        bodies=parts.bodies,
        endings=parts.endings,
        options=options,
    )
    sockets = [WebSocketRoute("/v1/chat/completions", socket.serve), responses.socket]
    return Generating(rows, [*routes], [*sockets], responses.settle)


class _Responses(NamedTuple):
    route: ResponsesRoute
    others: list[Route]
    socket: WebSocketRoute
    settle: Callable[[], Awaitable[None]]


def _responses(parts: Parts, service: GenerationService) -> _Responses:
    models, options, endings = parts.models, parts.options, parts.endings
    shelf = parts.jobs.responses if parts.jobs else None
    background = Background(shelf, endings) if shelf else None
    reader, maker = TurnReader(shelf, options), Maker(service, options, shelf)
    route = ResponsesRoute(models, options, reader, maker, background)
    socket = ResponsesSocket(
        reader,
        maker,
        keys=parts.keys,
        limits=parts.limits,
        bodies=parts.bodies,
        endings=endings,
        options=options,
    )
    return _Responses(
        route,
        _response_routes(route, StoredResponses(shelf, background, options)),
        WebSocketRoute("/v1/responses", socket.serve),
        background.close if background else _nothing_to_settle,
    )


async def _nothing_to_settle() -> None:
    """No response is made in the background."""


def _response_routes(responses: ResponsesRoute, stored: StoredResponses) -> list[Route]:
    return [
        Route("/v1/responses/input_tokens", responses.input_tokens, methods=["POST"]),
        Route("/v1/responses/{id}", stored.one),
        Route("/v1/responses/{id}", stored.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", stored.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", stored.input_items),
    ]


def _message_routes(parts: Parts, service: GenerationService) -> list[Route]:
    """Anthropic's, and how many tokens a conversation of either API has."""
    models, options = parts.models, parts.options
    messages = GenerationRoute(messages_api.MESSAGES, service, options)
    counting = CountRoute(
        messages_api.COUNTED_MESSAGES,
        models,
        lenient=options.lenient,
        told=messages_api.TokensCounted,
    )
    chat_counting = CountRoute(CHAT.reader, models, lenient=options.lenient)
    return [
        Route(MESSAGES, messages.create, methods=["POST"]),
        Route(COUNT_TOKENS, counting.count, methods=["POST"]),
        Route("/v1/chat/completions/input_tokens", chat_counting.count, methods=["POST"]),
    ]


def _old_routes(parts: Parts, service: GenerationService) -> list[Route]:
    """The names of an older server."""
    models, options = parts.models, parts.options
    generate = GenerationRoute(GENERATE, service, options)
    batch = GenerateBatchRoute(generate, service, limits=parts.limits, endings=parts.endings, options=options)
    return [
        Route("/generate", generate.create, methods=["POST"]),
        Route("/v1/generate", generate.create, methods=["POST"]),
        Route("/v1/generate/batch", batch.create, methods=["POST"]),
        Route("/v1/model/info", ModelInfoRoute(models).info),
    ]
