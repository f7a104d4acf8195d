"""What each route asks of a key: tested inside the application, and from outside of the real process."""

from __future__ import annotations

from openai_cpu_server.api.application import ROWS
from openai_cpu_server.http.keys import Scope
from openai_cpu_server.http.routes import WEBSOCKET

INFERENCE, METRICS, ADMIN = Scope
OPEN = None
OTHERS = {
    "POST /v1/adapters": ADMIN,
    "GET /v1/adapters": ADMIN,
    "DELETE /v1/adapters/{id}": ADMIN,
    "POST /v1/models/{id}/load": ADMIN,
    "POST /v1/models/{id}/unload": ADMIN,
    "POST /v1/models/pull": ADMIN,
    "DELETE /v1/models/{id}": ADMIN,
    "POST /api/pull": ADMIN,
    "POST /api/create": ADMIN,
    "POST /api/copy": ADMIN,
    "DELETE /api/delete": ADMIN,
    "GET /api/blobs/{digest}": ADMIN,
    "POST /api/blobs/{digest}": ADMIN,
    "POST /api/push": ADMIN,
    "DELETE /v1/cache": ADMIN,
    "GET /v1/cache/stats": ADMIN,
    "GET /metrics": METRICS,
    "GET /metrics/gateway": METRICS,
    "GET /v1/stats": METRICS,
    "GET /health": OPEN,
    "GET /ready": OPEN,
    "GET /v1/health": OPEN,
    "GET /openapi.json": OPEN,
    "GET /": OPEN,
    "GET /page/{version}/{name}": OPEN,
}
"""What needs something else than the right to ask models. A route that is open to more than those who have it
stands here too, beside its row: decide twice."""
SOCKETS = {row.name: OTHERS.get(row.name, INFERENCE) for row in ROWS if row.method == WEBSOCKET}
NEEDED = {row.name: OTHERS.get(row.name, INFERENCE) for row in ROWS if row.method != WEBSOCKET}
"""What each route must ask of a key, whatever its row says."""
OPEN_TO_GATEWAYS = ("GET /version", "GET /metrics", "GET /metrics/gateway")
"""The routes that need no key under `--open-to-gateways`."""
ENDLESS = "/v1/events"
"""Whoever may listen there listens for ever."""


def with_an_end(path: str) -> str:
    """The path, with a query that makes what is endless end at once: 400, for whoever may listen."""
    return f"{path}?types=" if path == ENDLESS else path
