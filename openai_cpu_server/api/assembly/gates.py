"""The layers in front of all routes."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from openai_cpu_server.api.access.limit_headers import NAMES as LIMIT_HEADERS
from openai_cpu_server.api.assembly.parts import Parts
from openai_cpu_server.api.calls.recall import X_CACHE
from openai_cpu_server.api.gates.entrance import Entrance
from openai_cpu_server.api.gates.fair_use import FairUse
from openai_cpu_server.api.resolve.call import UNENFORCED
from openai_cpu_server.api.resolve.routing import ROUTED_MODEL, ROUTED_WHY
from openai_cpu_server.api.routes.files import MULTIPART_BYTES


def gates(parts: Parts) -> list[Middleware]:
    options = parts.options
    uploads = {"/v1/files": options.max_file_bytes + MULTIPART_BYTES}
    return [
        *_cors(options.cors_origins),
        Middleware(
            Entrance,
            endings=parts.endings,
            keys=parts.keys,
            trusted_proxies=options.trusted_proxies,
            origins=options.cors_origins,
        ),
        Middleware(FairUse, limits=parts.limits, options=options, uploads=uploads),
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
