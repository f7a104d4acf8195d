"""What each route asks of a key: tested inside the application, and from outside of the real process."""

from __future__ import annotations

from openai_cpu_server.api.access.keys import Scope

INFERENCE, METRICS, ADMIN = Scope
OPEN = None
NEEDED = {
    "POST /v1/chat/completions": INFERENCE,
    "POST /v1/chat/completions/input_tokens": INFERENCE,
    "POST /v1/completions": INFERENCE,
    "POST /v1/responses": INFERENCE,
    "POST /v1/responses/input_tokens": INFERENCE,
    "GET /v1/responses/{id}": INFERENCE,
    "DELETE /v1/responses/{id}": INFERENCE,
    "POST /v1/responses/{id}/cancel": INFERENCE,
    "GET /v1/responses/{id}/input_items": INFERENCE,
    "POST /v1/messages": INFERENCE,
    "POST /v1/messages/count_tokens": INFERENCE,
    "POST /generate": INFERENCE,
    "POST /v1/generate": INFERENCE,
    "POST /v1/generate/batch": INFERENCE,
    "GET /v1/model/info": INFERENCE,
    "POST /v1/embeddings": INFERENCE,
    "POST /v1/rerank": INFERENCE,
    "POST /v2/rerank": INFERENCE,
    "POST /rerank": INFERENCE,
    "GET /v1/models": INFERENCE,
    "GET /v1/models/{id}": INFERENCE,
    "POST /v1/adapters": ADMIN,
    "GET /v1/adapters": ADMIN,
    "DELETE /v1/adapters/{id}": ADMIN,
    "POST /v1/models/{id}/load": ADMIN,
    "POST /v1/models/{id}/unload": ADMIN,
    "DELETE /v1/cache": ADMIN,
    "GET /v1/cache/stats": ADMIN,
    "GET /v1/requests": INFERENCE,
    "DELETE /v1/requests/{id}": INFERENCE,
    "POST /v1/files": INFERENCE,
    "GET /v1/files": INFERENCE,
    "GET /v1/files/{id}": INFERENCE,
    "DELETE /v1/files/{id}": INFERENCE,
    "GET /v1/files/{id}/content": INFERENCE,
    "POST /v1/batches": INFERENCE,
    "GET /v1/batches": INFERENCE,
    "GET /v1/batches/{id}": INFERENCE,
    "POST /v1/batches/{id}/cancel": INFERENCE,
    "GET /v1/usage": INFERENCE,
    "POST /tokenize": INFERENCE,
    "POST /detokenize": INFERENCE,
    "GET /version": INFERENCE,
    "GET /metrics": METRICS,
    "GET /metrics/gateway": METRICS,
    "GET /v1/stats": METRICS,
    "GET /v1/events": INFERENCE,
    "GET /health": OPEN,
    "GET /ready": OPEN,
    "GET /openapi.json": OPEN,
    "GET /": OPEN,
    "GET /page/{version}/{name}": OPEN,
}
"""A route that is missing here fails a test: decide what it needs, then add it."""
OPEN_TO_GATEWAYS = ("GET /version", "GET /metrics", "GET /metrics/gateway")
"""The routes that need no key under `--open-to-gateways`."""
ENDLESS = "/v1/events"
"""Whoever may listen there listens for ever."""


def with_an_end(path: str) -> str:
    """The path, with a query that makes what is endless end at once: 400, for whoever may listen."""
    return f"{path}?types=" if path == ENDLESS else path
