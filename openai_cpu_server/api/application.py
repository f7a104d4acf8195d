"""The API as one ASGI application. Whoever serves it owns the engine's life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Lifespan

from openai_cpu_server.api.access.clients import key_of
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.meter import Meter
from openai_cpu_server.api.access.rate_limits import RateLimits
from openai_cpu_server.api.assembly.gates import gates
from openai_cpu_server.api.assembly.generating import generating
from openai_cpu_server.api.assembly.managing import managing_routes
from openai_cpu_server.api.assembly.parts import Parts
from openai_cpu_server.api.calls.recall import Recall
from openai_cpu_server.api.describe.openapi import PATH as OPENAPI_PATH
from openai_cpu_server.api.describe.openapi import OpenApiRoute
from openai_cpu_server.api.error_shapes import shaped_response
from openai_cpu_server.api.gates.ticket import Endings, ticket_of
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.routes.adapters import FindAdapter, no_adapters
from openai_cpu_server.api.routes.model_keeping import AlwaysLoaded, ModelKeeping
from openai_cpu_server.api.rows import RowRunner
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
    watch.know_keys(key_of, jobs.usage.add if jobs else None)
    parts = Parts(
        models=models,
        options=options,
        keys=keys or KeyRing(options.api_key),
        limits=limits or RateLimits(Meter.open(None)),
        endings=Endings(watch),
        watch=watch,
        jobs=jobs,
        recall=recall,
    )
    asking = generating(parts)
    routes: list[BaseRoute] = [
        *asking.routes,
        *managing_routes(parts, keeping or AlwaysLoaded(), find_adapter),
    ]
    routes.append(Route(OPENAPI_PATH, OpenApiRoute(routes, lenient=options.lenient).document))
    routes += asking.sockets
    parts.endings.know(routes)
    app = Starlette(
        routes=routes,
        middleware=gates(parts),
        exception_handlers={HTTPException: _no_such_route},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    rows = RowRunner(
        asking.rows,
        keys=parts.keys,
        limits=parts.limits,
        storage=jobs.storage if jobs else None,
        endings=parts.endings,
    )
    return Api(app, rows, asking.settle)


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Answers 404 and 405 of the router, and says what was asked for."""
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}: {request.method} {request.url.path}"
    named = HTTPException(error.status_code, detail, error.headers)
    ticket = ticket_of(request.scope)
    ticket.failed(named)
    return shaped_response(named, request_id=ticket.id, path=ticket.path)
