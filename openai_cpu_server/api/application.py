"""The API as one ASGI application. Whoever serves it owns the engine's life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.types import Lifespan

from openai_cpu_server.api.access.clients import key_of
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.meter import Meter
from openai_cpu_server.api.access.rate_limits import RateLimits
from openai_cpu_server.api.asking.generation import GenerationService
from openai_cpu_server.api.calls.recall import X_CACHE, Recall
from openai_cpu_server.api.gates.ticket import Endings
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.parts import FindAdapter, ModelKeeping, Parts
from openai_cpu_server.api.resolve.call import UNENFORCED
from openai_cpu_server.api.resolve.routing import ROUTED_MODEL, ROUTED_WHY
from openai_cpu_server.api.rooms import ROOMS
from openai_cpu_server.api.routes.adapters import no_adapters
from openai_cpu_server.api.routes.model_keeping import AlwaysLoaded
from openai_cpu_server.api.rows import RowRunner
from openai_cpu_server.http.application import application
from openai_cpu_server.http.body import BodyBudget
from openai_cpu_server.http.gate import RouteGuard
from openai_cpu_server.http.routes import served_routes
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.watch import Watch

_HEADERS = (UNENFORCED, ROUTED_MODEL, ROUTED_WHY, X_CACHE)
"""What families say in headers of their responses."""


class Api(NamedTuple):
    """The application for a web server, and what works beside it."""

    app: Starlette
    run_row: RowRunner
    """Runs the rows of batch jobs on the same way."""
    settle: Callable[[], Awaitable[None]]
    """It must be awaited when the engines have ended, before the jobs' database is closed."""
    bodies: BodyBudget
    """The web server counts against it what it holds of messages that are not whole."""


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
    watch.know_keys(key_of, jobs.usage.add if jobs else None)
    parts = Parts(
        models=models,
        options=options,
        keys=keys or KeyRing(options.api_key),
        limits=limits or RateLimits(Meter.open(None)),
        bodies=BodyBudget(options.max_bodies_bytes),
        endings=Endings(watch),
        watch=watch,
        jobs=jobs,
        recall=recall,
        find_adapter=find_adapter,
        keeping=keeping or AlwaysLoaded(),
        generation=GenerationService(models, options, recall),
        at_end=[],
    )
    served = list(served_routes(ROOMS, parts))
    guard = RouteGuard(keys=parts.keys, limits=parts.limits, bodies=parts.bodies, options=options)
    app = application(
        served, guard, endings=parts.endings, options=options, headers=_HEADERS, lifespan=lifespan
    )
    rows = RowRunner(
        {route.row.path: answer for route in served if (answer := route.batch_handler) is not None},
        keys=parts.keys,
        limits=parts.limits,
        storage=jobs.storage if jobs else None,
        endings=parts.endings,
    )
    return Api(app, rows, partial(_settle, parts), parts.bodies)


async def _settle(parts: Parts) -> None:
    for ended in parts.at_end:
        await ended()
