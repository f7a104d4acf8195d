"""ASGI application of a server's routes, behind the gates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Lifespan

from openai_cpu_server.http.context import RequestHistory, ticket_of
from openai_cpu_server.http.errors import ErrorShape, shape_at
from openai_cpu_server.http.gate import AuthMiddleware, ErrorMiddleware, HostGate, canonical_origin
from openai_cpu_server.http.limits import NAMES as LIMIT_HEADERS
from openai_cpu_server.http.openapi import DOCUMENT, OpenApiRoute
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.routes import ServedRoute, guarded_nowhere

_HEADERS = ("x-request-id", "request-id", "x-ignored-parameters")


def application(
    served: Sequence[ServedRoute],
    guard: AuthMiddleware,
    *,
    endings: RequestHistory,
    options: ApiOptions,
    headers: Sequence[str],
    lifespan: Lifespan[Starlette] | None,
) -> Starlette:
    described = [*(route.row for route in served if not route.is_hidden), DOCUMENT]
    document = ServedRoute(DOCUMENT, OpenApiRoute(described, lenient=options.lenient))
    shapes = tuple(dict.fromkeys(route.shape for route in served if route.shape is not None))
    app = Starlette(
        routes=[route.guarded(guard) for route in [*served, document]],
        middleware=[
            Middleware(HostGate, endings=endings, hosts=options.hosts, shapes=shapes),
            *_cors(options.cors_origins, headers),
            Middleware(ErrorMiddleware, endings=endings, shapes=shapes),
        ],
        exception_handlers={HTTPException: partial(_no_such_route, shapes)},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.router.default = guarded_nowhere(app.router.not_found, guard)
    return app


def _cors(origins: Collection[str], headers: Sequence[str]) -> list[Middleware]:
    """Added around the entrance, because preflights carry no key and pages may read errors too."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=tuple(map(canonical_origin, origins)),
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(*_HEADERS, *headers, "retry-after", "retry-after-ms", *LIMIT_HEADERS),
        )
    ]


def _hint(request: Request) -> str:
    """Clients append paths to a base URL, in which users omit or repeat `/v1`."""
    names = [name for name in request.url.path.split("/") if name]
    while names and names[0] == "v1":
        del names[0]
    for near in ("/" + "/".join(["v1", *names]), "/" + "/".join(names)):
        scope = {**request.scope, "path": near}
        if near != request.url.path and any(
            route.matches(scope)[0] is Match.FULL for route in request.app.routes
        ):
            return f". There is {near}: the base URL of OpenAI's clients ends in /v1."
    return ""


async def _no_such_route(shapes: Sequence[ErrorShape], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}: {request.method} {request.url.path}{_hint(request)}"
    named = HTTPException(error.status_code, detail, error.headers)
    ticket = ticket_of(request.scope)
    ticket.failed(named)
    return shape_at(ticket.path, shapes).response(named, ticket.id)
