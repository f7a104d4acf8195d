"""ASGI application of the API. The caller owns the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from starlette.applications import Starlette

from openai_cpu_server.api.admin import adapters, health, page, requests, stats, tokens, usage
from openai_cpu_server.api.admin import mcp as mcp_routes
from openai_cpu_server.api.admin import models as model_routes
from openai_cpu_server.api.admin.adapters import no_adapters
from openai_cpu_server.api.admin.models import AlwaysLoaded
from openai_cpu_server.api.chat import routes as chat
from openai_cpu_server.api.completions import routes as completions
from openai_cpu_server.api.events import stream as events
from openai_cpu_server.api.files import routes as files
from openai_cpu_server.api.files.routes import uploaded
from openai_cpu_server.api.files.rows import RowRunner
from openai_cpu_server.api.generate import routes as generate
from openai_cpu_server.api.generation.answer_lookup import X_CACHE, AnswerLookup
from openai_cpu_server.api.generation.attachments import AttachmentFinder
from openai_cpu_server.api.generation.generation import ROUTED_MODEL, ROUTED_WHY, GenerationService
from openai_cpu_server.api.generation.resolve import UNENFORCED
from openai_cpu_server.api.generation.resumable_streams import CONVERSATION_HEADER, ResumableStreams
from openai_cpu_server.api.llama_server import routes as llama_server
from openai_cpu_server.api.messages import routes as messages
from openai_cpu_server.api.ollama import routes as ollama
from openai_cpu_server.api.pooling import routes as pooling
from openai_cpu_server.api.responses import routes as responses
from openai_cpu_server.api.responses import stored_conversations
from openai_cpu_server.api.state import AppState, FindAdapter, ModelKeeping, ModelStore
from openai_cpu_server.api.transcriptions import routes as transcriptions
from openai_cpu_server.contract.mcp import McpServers
from openai_cpu_server.http.application import DOCUMENT, application
from openai_cpu_server.http.body import BodyBudget
from openai_cpu_server.http.context import RequestHistory
from openai_cpu_server.http.gate import AuthMiddleware
from openai_cpu_server.http.keys import KeyRing, key_of
from openai_cpu_server.http.limits import Meter, RateLimits
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, served_routes
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.telemetry import Telemetry

ROUTERS: Sequence[ApiRouter[AppState]] = (
    chat.ROUTER,
    completions.ROUTER,
    transcriptions.ROUTER,
    responses.ROUTER,
    stored_conversations.ROUTER,
    messages.ROUTER,
    generate.ROUTER,
    ollama.ROUTER,
    llama_server.ROUTER,
    pooling.ROUTER,
    tokens.ROUTER,
    model_routes.ROUTER,
    adapters.ROUTER,
    mcp_routes.ROUTER,
    requests.ROUTER,
    files.ROUTER,
    usage.ROUTER,
    health.ROUTER,
    stats.ROUTER,
    events.ROUTER,
    page.ROUTER,
)
ROWS: Sequence[ApiRoute] = (*(row for router in ROUTERS for row in router.rows), DOCUMENT)


_HEADERS = (UNENFORCED, ROUTED_MODEL, ROUTED_WHY, X_CACHE, CONVERSATION_HEADER.lower())


class ServedApplication(NamedTuple):
    app: Starlette
    run_row: RowRunner
    settle: Callable[[], Awaitable[None]]
    """Await after the engines' end, before the jobs' database closes."""
    bodies: BodyBudget
    """Budget that the web server charges for incomplete messages."""


def create_api(
    models: ModelRegistry,
    options: ApiOptions,
    *,
    keys: KeyRing | None = None,
    limits: RateLimits | None = None,
    jobs: Jobs | None = None,
    telemetry: Telemetry | None = None,
    find_adapter: FindAdapter = no_adapters,
    keeping: ModelKeeping | None = None,
    model_store: ModelStore | None = None,
    answer_lookup: AnswerLookup | None = None,
    mcp: McpServers | None = None,
) -> ServedApplication:
    """Build the API. `keys`: None for the options' one key. `limits`: None to count in this process."""
    telemetry = telemetry or Telemetry.new(model=models.default.name)
    telemetry.key_of, telemetry.book = key_of, jobs.usage.add if jobs else None
    upload = None if jobs is None else partial(uploaded, jobs)
    history = RequestHistory(telemetry)
    streams = ResumableStreams(history, keep_s=options.keep_streams_s)
    telemetry.metrics.watch_streams(streams.amounts)
    state = AppState(
        models=models,
        options=options,
        keys=keys or KeyRing(options.api_key),
        limits=limits or RateLimits(Meter.open(None)),
        bodies=BodyBudget(options.max_bodies_bytes),
        history=history,
        telemetry=telemetry,
        jobs=jobs,
        answer_lookup=answer_lookup,
        find_adapter=find_adapter,
        keeping=keeping or AlwaysLoaded(),
        store=model_store,
        generation=GenerationService(
            models, options, AttachmentFinder(options.media, upload), streams, answer_lookup
        ),
        mcp=mcp,
        at_end=[streams.close],
    )
    served = list(served_routes(ROUTERS, state))
    guard = AuthMiddleware(keys=state.keys, limits=state.limits, bodies=state.bodies, options=options)
    app = application(served, guard, history=state.history, options=options, headers=_HEADERS)
    rows = RowRunner(
        routes={route.row.path: answer for route in served if (answer := route.batch_handler) is not None},
        keys=state.keys,
        limits=state.limits,
        storage=jobs.storage if jobs else None,
        history=state.history,
    )

    async def settle() -> None:
        for ended in state.at_end:
            await ended()

    return ServedApplication(app, rows, settle, state.bodies)
