"""The API as one ASGI application. Whoever serves it owns the engine's life."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Lifespan

from openai_cpu_server.api.errors import error_response
from openai_cpu_server.api.middleware import Authentication, BodyLimit, Boundary
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.pieces import Pieces
from openai_cpu_server.api.resolve.chat_prompts import ChatPrompts
from openai_cpu_server.api.routes.cache import CacheRoutes
from openai_cpu_server.api.routes.chat import ChatFamily
from openai_cpu_server.api.routes.completions import CompletionFamily
from openai_cpu_server.api.routes.generation import GenerationRoute
from openai_cpu_server.api.routes.health import HealthRoutes
from openai_cpu_server.api.routes.models import ModelRoutes
from openai_cpu_server.api.routes.requests import RequestRoutes
from openai_cpu_server.api.routes.tokens import TokenRoutes
from openai_cpu_server.api.ticket import ticket_of
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.engine.client import EngineClient
from openai_cpu_server.prompt.chat_template import ChatTemplate


def create_api(
    *,
    engine: EngineClient,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    options: ApiOptions,
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    """`template`: None for a model that has none; chat is refused then."""
    app = Starlette(
        routes=_routes(engine, tokenizer, ChatPrompts(template, tokenizer), options),
        middleware=[
            Middleware(Boundary),
            Middleware(Authentication, api_key=options.api_key),
            Middleware(BodyLimit, max_bytes=options.max_body_bytes),
        ],
        exception_handlers={HTTPException: _no_such_route},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _routes(
    engine: EngineClient, tokenizer: Tokenizer, prompts: ChatPrompts, options: ApiOptions
) -> list[Route]:
    pieces = Pieces(tokenizer)
    chat = GenerationRoute(ChatFamily(prompts, pieces), engine, options)
    completions = GenerationRoute(CompletionFamily(pieces), engine, options)
    models = ModelRoutes(engine, options)
    tokens = TokenRoutes(tokenizer, prompts, engine, options)
    health = HealthRoutes(engine, options)
    cache, requests = CacheRoutes(engine), RequestRoutes(engine)
    return [
        Route("/v1/chat/completions", chat.create, methods=["POST"]),
        Route("/v1/completions", completions.create, methods=["POST"]),
        Route("/v1/models", models.list),
        Route("/v1/models/{id:path}", models.one),
        Route("/v1/cache", cache.clear, methods=["DELETE"]),
        Route("/v1/cache/stats", cache.stats),
        Route("/v1/requests", requests.list),
        Route("/v1/requests/{id:path}", requests.cancel, methods=["DELETE"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/health", health.health),
        Route("/ready", health.ready),
    ]


async def _no_such_route(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, with what was asked for in the message."""
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}: {request.method} {request.url.path}"
    named = HTTPException(error.status_code, detail, error.headers)
    return error_response(named, request_id=ticket_of(request.scope).id)
