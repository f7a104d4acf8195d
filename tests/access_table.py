"""What each route asks of a key: tests/api/test_access_matrix.py holds the application to it."""

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
"""What needs something else than the right to ask models. A route that is open to more than those who have it
stands here too, beside its row: decide twice."""
SOCKETS = {row.name: OTHERS.get(row.name, INFERENCE) for row in ROWS if row.method == WEBSOCKET}
NEEDED = {row.name: OTHERS.get(row.name, INFERENCE) for row in ROWS if row.method != WEBSOCKET}
"""What each route must ask of a key, whatever its row says."""
OPEN_TO_GATEWAYS = ("GET /version", "GET /metrics", "GET /metrics/gateway")
"""The routes that need no key under `--open-to-gateways`."""
ENDLESS = "/v1/events"  # whoever may listen there listens for ever


def with_an_end(path: str) -> str:
    """The path, with a query that makes what is endless end at once: 400, for whoever may listen."""
    return f"{path}?types=" if path == ENDLESS else path
