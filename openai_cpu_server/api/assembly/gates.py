"""What stands in front of all routes."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from openai_cpu_server.api.access.limit_headers import NAMES as LIMIT_HEADERS
from openai_cpu_server.api.assembly.parts import Parts
from openai_cpu_server.api.calls.recall import X_CACHE
from openai_cpu_server.api.gates.browsers import canonical_origin
from openai_cpu_server.api.gates.entrance import Entrance, HostGate
from openai_cpu_server.api.resolve.call import UNENFORCED
from openai_cpu_server.api.resolve.routing import ROUTED_MODEL, ROUTED_WHY
from openai_cpu_server.http.gate import RouteGuard


def gates(parts: Parts) -> list[Middleware]:
    """The layers around the router."""
    options, endings = parts.options, parts.endings
    return [
        Middleware(HostGate, endings=endings, hosts=options.hosts),
        *_cors(options.cors_origins),
        Middleware(Entrance, endings=endings),
    ]


def route_guard(parts: Parts) -> RouteGuard:
    """What stands before each route behind it."""
    return RouteGuard(keys=parts.keys, limits=parts.limits, bodies=parts.bodies, options=parts.options)


def _cors(origins: tuple[str, ...]) -> list[Middleware]:
    """The layer around all but one: a preflight has no key, and pages may read errors too."""
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
            allow_origins=tuple(map(canonical_origin, origins)),
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=exposed,
        )
    ]
