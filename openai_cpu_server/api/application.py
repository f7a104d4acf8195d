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
from openai_cpu_server.api.assembly.gates import gates, route_guard
from openai_cpu_server.api.assembly.generating import generating
from openai_cpu_server.api.assembly.managing import managing_routes, page_routes
from openai_cpu_server.api.assembly.parts import Parts
from openai_cpu_server.api.calls.recall import Recall
from openai_cpu_server.api.describe.openapi import PATH as OPENAPI_PATH
from openai_cpu_server.api.describe.openapi import OpenApiRoute
from openai_cpu_server.api.describe.operations import OPERATIONS
from openai_cpu_server.api.error_shapes import shaped_response
from openai_cpu_server.api.gates.ticket import Endings, ticket_of
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.routes.adapters import FindAdapter, no_adapters
from openai_cpu_server.api.routes.model_keeping import AlwaysLoaded, ModelKeeping
from openai_cpu_server.api.rows import RowRunner
from openai_cpu_server.http.body import BodyBudget
from openai_cpu_server.http.gate import guarded, guarded_nowhere, operation_name
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.watch import Watch


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
    )
    asking, page = generating(parts), page_routes(options)
    described: list[BaseRoute] = [
        *asking.routes,
        *managing_routes(parts, keeping or AlwaysLoaded(), find_adapter),
        *(page if options.page else []),
    ]
    described.append(Route(OPENAPI_PATH, OpenApiRoute(described, lenient=options.lenient).document))
    described += asking.sockets
    routes = described if options.page else [*described, *page]
    guard = route_guard(parts)
    app = Starlette(
        routes=[guarded(route, OPERATIONS[operation_name(route)].access, guard) for route in routes],
        middleware=gates(parts),
        exception_handlers={HTTPException: _no_such_route},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.router.default = guarded_nowhere(app.router.not_found, guard)
    rows = RowRunner(
        asking.rows,
        keys=parts.keys,
        limits=parts.limits,
        storage=jobs.storage if jobs else None,
        endings=parts.endings,
    )
    return Api(app, rows, asking.settle, parts.bodies)


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Answers 404 and 405 of the router, and says what was asked for."""
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}: {request.method} {request.url.path}"
    named = HTTPException(error.status_code, detail, error.headers)
    ticket = ticket_of(request.scope)
    ticket.failed(named)
    return shaped_response(named, request_id=ticket.id, path=ticket.path)
