"""The routes that ask no model: what there is, how it is kept and watched, and jobs."""

from __future__ import annotations

from starlette.routing import Route

from openai_cpu_server.api.assembly.parts import Parts
from openai_cpu_server.api.calls.recall import Recall
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.routes.adapters import AdapterRoutes, FindAdapter
from openai_cpu_server.api.routes.batch_jobs import BatchJobRoutes
from openai_cpu_server.api.routes.cache import CacheRoutes
from openai_cpu_server.api.routes.events import EventRoutes
from openai_cpu_server.api.routes.files import FileRoutes
from openai_cpu_server.api.routes.health import HealthRoutes
from openai_cpu_server.api.routes.metrics import GATEWAY_METRICS_PATH, MetricsRoutes
from openai_cpu_server.api.routes.model_keeping import ModelKeeping, ModelKeepingRoutes
from openai_cpu_server.api.routes.models import ModelRoutes
from openai_cpu_server.api.routes.page import NoPage, PageRoutes
from openai_cpu_server.api.routes.requests import RequestRoutes
from openai_cpu_server.api.routes.stats import StatsRoutes
from openai_cpu_server.api.routes.tokens import TokenRoutes
from openai_cpu_server.api.routes.usage import UsageRoutes
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry


def managing_routes(parts: Parts, keeping: ModelKeeping, find_adapter: FindAdapter) -> list[Route]:
    models, options = parts.models, parts.options
    routes = [
        *_keeping_routes(models, keeping),
        *_routes(models, options, parts.recall),
        *_adapter_routes(models, options, find_adapter),
        *(_job_routes(parts.jobs, models, options) if parts.jobs else []),
    ]
    has_usage = any(route.path == "/v1/usage" for route in routes)
    return [*routes, *_watching_routes(parts, has_usage=has_usage)]


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
        Route("/version", health.version),
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


def _watching_routes(parts: Parts, *, has_usage: bool) -> list[Route]:
    models, watch = parts.models, parts.watch
    metrics, stats = MetricsRoutes(models, watch.metrics), StatsRoutes(models, watch.recent)
    events = EventRoutes(models, watch.recent, parts.keys, parts.options, has_usage=has_usage)
    return [
        Route("/metrics", metrics.page),
        Route(GATEWAY_METRICS_PATH, metrics.for_gateways),
        Route("/v1/stats", stats.stats),
        Route("/v1/events", events.stream),
    ]


def page_routes(options: ApiOptions) -> list[Route]:
    """Without the page its paths stay open: whoever asks is told that nothing is there."""
    page = PageRoutes() if options.page else NoPage()
    return [Route("/", page.index), Route("/page/{version}/{name}", page.file)]


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
        Route("/v1/usage", UsageRoutes(jobs, options).list),
    ]
