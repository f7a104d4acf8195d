"""The API as one ASGI application. Whoever serves it owns the engine's life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Lifespan

from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.limit_headers import NAMES as LIMIT_HEADERS
from openai_cpu_server.api.access.meter import Meter
from openai_cpu_server.api.access.rate_limits import RateLimits
from openai_cpu_server.api.calls.recall import X_CACHE, Recall
from openai_cpu_server.api.describe.openapi import PATH as OPENAPI_PATH
from openai_cpu_server.api.describe.openapi import OpenApiRoute
from openai_cpu_server.api.error_shapes import COUNT_TOKENS, MESSAGES, shaped_response
from openai_cpu_server.api.gates.entrance import Entrance
from openai_cpu_server.api.gates.fair_use import FairUse
from openai_cpu_server.api.gates.ticket import Endings, ticket_of
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.resolve.call import UNENFORCED
from openai_cpu_server.api.resolve.routing import ROUTED_MODEL, ROUTED_WHY
from openai_cpu_server.api.routes.adapters import AdapterRoutes, FindAdapter, no_adapters
from openai_cpu_server.api.routes.anthropic import MessagesCounting, MessagesFamily
from openai_cpu_server.api.routes.batch_jobs import BatchJobRoutes
from openai_cpu_server.api.routes.cache import CacheRoutes
from openai_cpu_server.api.routes.chat import ChatFamily
from openai_cpu_server.api.routes.completions import CompletionFamily
from openai_cpu_server.api.routes.counting import ChatCounting, CountRoute
from openai_cpu_server.api.routes.files import MULTIPART_BYTES, FileRoutes
from openai_cpu_server.api.routes.generate import GenerateBatchRoute, GenerateFamily, ModelInfoRoute
from openai_cpu_server.api.routes.generation import GenerationRoute
from openai_cpu_server.api.routes.health import HealthRoutes
from openai_cpu_server.api.routes.metrics import MetricsRoutes
from openai_cpu_server.api.routes.model_keeping import (
    AlwaysLoaded,
    ModelKeeping,
    ModelKeepingRoutes,
)
from openai_cpu_server.api.routes.models import ModelRoutes
from openai_cpu_server.api.routes.pooling import EMBEDDINGS, RERANKING, PoolingRoute
from openai_cpu_server.api.routes.requests import RequestRoutes
from openai_cpu_server.api.routes.responses.background import Background
from openai_cpu_server.api.routes.responses.create import ResponsesRoute
from openai_cpu_server.api.routes.responses.making import Maker
from openai_cpu_server.api.routes.responses.socket import ResponsesSocket
from openai_cpu_server.api.routes.responses.stored import StoredResponses
from openai_cpu_server.api.routes.responses.turns import TurnReader
from openai_cpu_server.api.routes.stats import StatsRoutes
from openai_cpu_server.api.routes.tokens import TokenRoutes
from openai_cpu_server.api.routes.websocket import SocketRoute
from openai_cpu_server.api.rows import RowRunner
from openai_cpu_server.api.schemas.generate import GenerateBody
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.watch import Watch


class Api(NamedTuple):
    """The application for a web server, what runs the rows of batch jobs on the same way, and what must be
    awaited when the engines have ended, before the jobs' database is closed."""

    app: Starlette
    run_row: RowRunner
    settle: Callable[[], Awaitable[None]]


def create_api(
    models: ModelRegistry,
    options: ApiOptions,
    *,
    keys: KeyRing | None = None,
    limits: RateLimits | None = None,
    jobs: Jobs | None = None,
    watch: Watch | None = None,
    find_adapter: FindAdapter = no_adapters,
    keeping: ModelKeeping | None = None,
    recall: Recall | None = None,
    lifespan: Lifespan[Starlette] | None = None,
) -> Api:
    """`keys`: None is the one key of the options, or none. `limits`: None counts in this process.

    `find_adapter`: finds what `POST /v1/adapters` names.

    `jobs`: None is no batch API. `watch`: the engines', if they have one; None: steps are not watched.
    `keeping`: what loads and unloads models; None: they stay as they are.
    `recall`: None is no cache of answers.
    """
    watch = watch or Watch.new(model=models.default.name)
    keys = keys or KeyRing(options.api_key)
    limits = limits or RateLimits(Meter.open(None))
    chat = GenerationRoute(ChatFamily(), models, options, recall)
    completions = GenerationRoute(CompletionFamily(), models, options, recall)
    embeddings = PoolingRoute(EMBEDDINGS, models, options)
    reranking = PoolingRoute(RERANKING, models, options)
    shelf, endings = jobs.responses if jobs else None, Endings(watch)
    background = Background(shelf, endings) if shelf else None
    reader, maker = TurnReader(shelf, options), Maker(models, options, shelf, recall)
    responses = ResponsesRoute(models, options, reader, maker, background)
    row_routes: dict[str, GenerationRoute[Any] | PoolingRoute[Any] | ResponsesRoute] = {
        "/v1/chat/completions": chat,
        "/v1/completions": completions,
        "/v1/responses": responses,
        "/v1/embeddings": embeddings,
        "/v1/rerank": reranking,
    }
    routes: list[BaseRoute] = [
        *(Route(path, route.create, methods=["POST"]) for path, route in row_routes.items()),
        *(Route(path, reranking.create, methods=["POST"]) for path in ("/rerank", "/v2/rerank")),
        *_response_routes(responses, StoredResponses(shelf, background, options)),
        *_message_routes(models, options, recall),
        *_keeping_routes(models, keeping or AlwaysLoaded()),
        *_routes(models, options, recall),
        *_adapter_routes(models, options, find_adapter),
        *_watching_routes(models, watch),
        *(_job_routes(jobs, models, options) if jobs else []),
    ]
    generate: GenerationRoute[GenerateBody] = GenerationRoute(GenerateFamily(), models, options, recall)
    old_batch = GenerateBatchRoute(generate, limits=limits, endings=endings, options=options)
    routes += _old_routes(models, generate, old_batch)
    routes.append(Route(OPENAPI_PATH, OpenApiRoute(routes, lenient=options.lenient).document))
    socket = SocketRoute(chat, keys=keys, limits=limits, endings=endings, options=options)
    routes.append(WebSocketRoute("/v1/chat/completions", socket.serve))
    response_socket = ResponsesSocket(
        reader, maker, keys=keys, limits=limits, endings=endings, options=options
    )
    routes.append(WebSocketRoute("/v1/responses", response_socket.serve))
    endings.know(routes)
    app = Starlette(
        routes=routes,
        middleware=_gates(options, keys, limits, endings),
        exception_handlers={HTTPException: _no_such_route},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    settle = background.close if background else _nothing_to_settle
    return Api(app, RowRunner(row_routes, keys=keys, endings=endings), settle)


async def _nothing_to_settle() -> None:
    """No response is made in the background."""


def _gates(options: ApiOptions, keys: KeyRing, limits: RateLimits, endings: Endings) -> list[Middleware]:
    uploads = {"/v1/files": options.max_file_bytes + MULTIPART_BYTES}
    return [
        *_cors(options.cors_origins),
        Middleware(
            Entrance,
            endings=endings,
            keys=keys,
            trusted_proxies=options.trusted_proxies,
            origins=options.cors_origins,
        ),
        Middleware(FairUse, limits=limits, options=options, uploads=uploads),
    ]


def _cors(origins: tuple[str, ...]) -> list[Middleware]:
    """The layer around all others: a preflight has no key, and pages may read errors too."""
    if not origins:
        return []
    notes = (
        "x-request-id",
        "request-id",
        "x-ignored-parameters",
        UNENFORCED,
        ROUTED_MODEL,
        ROUTED_WHY,
        X_CACHE,
    )
    exposed = (*notes, "retry-after", "retry-after-ms", *LIMIT_HEADERS)
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=exposed,
        )
    ]


def _message_routes(models: ModelRegistry, options: ApiOptions, recall: Recall | None) -> list[Route]:
    """Anthropic's, and how many tokens a conversation of either API has."""
    messages = GenerationRoute(MessagesFamily(), models, options, recall)
    counting = CountRoute(MessagesCounting(), models, lenient=options.lenient)
    chat_counting = CountRoute(ChatCounting(), models, lenient=options.lenient)
    return [
        Route(MESSAGES, messages.create, methods=["POST"]),
        Route(COUNT_TOKENS, counting.count, methods=["POST"]),
        Route("/v1/chat/completions/input_tokens", chat_counting.count, methods=["POST"]),
    ]


def _routes(models: ModelRegistry, options: ApiOptions, recall: Recall | None) -> list[Route]:
    listing, health = ModelRoutes(models), HealthRoutes(models)
    tokens = TokenRoutes(models, lenient=options.lenient)
    cache, requests = CacheRoutes(models, recall), RequestRoutes(models)
    return [
        Route("/v1/models", listing.list),
        Route("/v1/models/{id:path}", listing.one),
        Route("/v1/cache", cache.clear, methods=["DELETE"]),
        Route("/v1/cache/stats", cache.stats),
        Route("/v1/requests", requests.list),
        Route("/v1/requests/{id:path}", requests.cancel, methods=["DELETE"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/health", health.health),
        Route("/ready", health.ready),
    ]


def _response_routes(responses: ResponsesRoute, stored: StoredResponses) -> list[Route]:
    return [
        Route("/v1/responses/input_tokens", responses.input_tokens, methods=["POST"]),
        Route("/v1/responses/{id}", stored.one),
        Route("/v1/responses/{id}", stored.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", stored.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", stored.input_items),
    ]


def _old_routes(
    models: ModelRegistry, generate: GenerationRoute[GenerateBody], batch: GenerateBatchRoute
) -> list[Route]:
    """The names of an older server."""
    return [
        Route("/generate", generate.create, methods=["POST"]),
        Route("/v1/generate", generate.create, methods=["POST"]),
        Route("/v1/generate/batch", batch.create, methods=["POST"]),
        Route("/v1/model/info", ModelInfoRoute(models).info),
    ]


def _adapter_routes(models: ModelRegistry, options: ApiOptions, find: FindAdapter) -> list[Route]:
    adapters = AdapterRoutes(models, find, lenient=options.lenient)
    return [
        Route("/v1/adapters", adapters.load, methods=["POST"]),
        Route("/v1/adapters", adapters.list),
        Route("/v1/adapters/{id:path}", adapters.unload, methods=["DELETE"]),
    ]


def _keeping_routes(models: ModelRegistry, keeping: ModelKeeping) -> list[Route]:
    """They stand before `/v1/models/{id}`, for a name may have slashes."""
    routes = ModelKeepingRoutes(models, keeping)
    return [
        Route("/v1/models/{id:path}/load", routes.load, methods=["POST"]),
        Route("/v1/models/{id:path}/unload", routes.unload, methods=["POST"]),
    ]


def _watching_routes(models: ModelRegistry, watch: Watch) -> list[Route]:
    metrics, stats = MetricsRoutes(models, watch.metrics), StatsRoutes(models, watch.recent)
    return [Route("/metrics", metrics.page), Route("/v1/stats", stats.stats)]


def _job_routes(jobs: Jobs, models: ModelRegistry, options: ApiOptions) -> list[Route]:
    files, batches = FileRoutes(jobs, models), BatchJobRoutes(jobs, models, options)
    return [
        Route("/v1/files", files.create, methods=["POST"]),
        Route("/v1/files", files.list),
        Route("/v1/files/{id}", files.one),
        Route("/v1/files/{id}", files.delete, methods=["DELETE"]),
        Route("/v1/files/{id}/content", files.content),
        Route("/v1/batches", batches.create, methods=["POST"]),
        Route("/v1/batches", batches.list),
        Route("/v1/batches/{id}", batches.one),
        Route("/v1/batches/{id}/cancel", batches.cancel, methods=["POST"]),
    ]


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Answers 404 and 405 of the router, and says what was asked for."""
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}: {request.method} {request.url.path}"
    named = HTTPException(error.status_code, detail, error.headers)
    ticket = ticket_of(request.scope)
    ticket.failed(named)
    return shaped_response(named, request_id=ticket.id, path=ticket.path)
