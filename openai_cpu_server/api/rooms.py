"""All routes that a server can have: a line for each family and for each room of administration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_cpu_server.api.chat import routes as chat
from openai_cpu_server.api.completions import routes as completions
from openai_cpu_server.api.generate import routes as generate
from openai_cpu_server.api.messages import routes as messages
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.api.pooling import routes as pooling
from openai_cpu_server.api.responses import routes as responses
from openai_cpu_server.api.routes import (
    adapters,
    batch_jobs,
    cache,
    events,
    files,
    health,
    metrics,
    model_keeping,
    models,
    page,
    requests,
    stats,
    tokens,
    usage,
)
from openai_cpu_server.http import openapi
from openai_cpu_server.http.routes import RouteRoom, RouteRow

ROOMS: Sequence[RouteRoom[Parts, Any]] = (
    chat.ROOM,
    completions.ROOM,
    responses.ROOM,
    messages.ROOM,
    pooling.EMBEDDING_ROOM,
    pooling.RERANKING_ROOM,
    generate.ROOM,
    tokens.ROOM,
    models.ROOM,
    model_keeping.ROOM,
    adapters.ROOM,
    requests.ROOM,
    cache.ROOM,
    files.ROOM,
    batch_jobs.ROOM,
    usage.ROOM,
    health.ROOM,
    metrics.ROOM,
    stats.ROOM,
    events.ROOM,
    page.ROOM,
)
ROWS: Sequence[RouteRow[Any]] = (*(row for room in ROOMS for row in room.rows), openapi.ROW)
"""The one table. Of a server some of them may be left out."""
