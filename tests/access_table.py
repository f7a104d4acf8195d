"""The right that each route requires of a key; tests/api/test_access_matrix.py compares the application."""

from __future__ import annotations

from openai_cpu_server.api.application import ROWS
from openai_cpu_server.http.keys import Scope
from openai_cpu_server.http.routes import WEBSOCKET

INFERENCE, METRICS, ADMIN = Scope
OPEN = None


def _routes(*lines: str) -> list[str]:
    return [f"{method} {path}" for method, *paths in map(str.split, lines) for path in paths]


OTHERS = {
    **dict.fromkeys(
        _routes(
            "GET /v1/adapters /api/blobs/{digest} /v1/cache/stats",
            "POST /v1/adapters /v1/models/{id}/load /v1/models/{id}/unload /v1/models/pull",
            "POST /api/pull /api/create /api/copy /api/push /api/blobs/{digest}",
            "DELETE /v1/adapters/{id} /v1/models/{id} /api/delete /v1/cache",
        ),
        ADMIN,
    ),
    **dict.fromkeys(_routes("GET /metrics /metrics/gateway /v1/stats"), METRICS),
    **dict.fromkeys(_routes("GET /health /ready /v1/health /openapi.json / /page/{version}/{name}"), OPEN),
}
"""Routes that need another right than that of inference. A route that is open to more keys is listed here
too, beside its row, so that its author decides twice."""
SOCKETS = {row.name: OTHERS.get(row.name, INFERENCE) for row in ROWS if row.method == WEBSOCKET}
NEEDED = {row.name: OTHERS.get(row.name, INFERENCE) for row in ROWS if row.method != WEBSOCKET}
"""The right that each route must require, independent of its row."""
OPEN_TO_GATEWAYS = ("GET /version", "GET /metrics", "GET /metrics/gateway")
"""Routes that need no key under `--open-to-gateways`."""
ENDLESS = "/v1/events"  # its stream never ends


def with_an_end(path: str) -> str:
    """Add a query that ends the endless stream at once, with 400 for a client that may read it."""
    return f"{path}?types=" if path == ENDLESS else path
