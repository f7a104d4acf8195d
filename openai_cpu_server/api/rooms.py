"""All routes that a server can have: a line for each family and for each room of administration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai_cpu_server.api.chat.routes import ROOM as CHAT
from openai_cpu_server.api.completions.routes import ROOM as COMPLETIONS
from openai_cpu_server.api.generate.routes import ROOM as GENERATE
from openai_cpu_server.api.messages.routes import ROOM as MESSAGES
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.api.pooling.routes import EMBEDDING_ROOM, RERANKING_ROOM
from openai_cpu_server.api.responses.routes import ROOM as RESPONSES
from openai_cpu_server.api.routes.adapters import ROOM as ADAPTERS
from openai_cpu_server.api.routes.batch_jobs import ROOM as BATCHES
from openai_cpu_server.api.routes.cache import ROOM as CACHE
from openai_cpu_server.api.routes.events import ROOM as EVENTS
from openai_cpu_server.api.routes.files import ROOM as FILES
from openai_cpu_server.api.routes.health import ROOM as HEALTH
from openai_cpu_server.api.routes.metrics import METRICS_ROOM
from openai_cpu_server.api.routes.model_keeping import KEEPING_ROOM
from openai_cpu_server.api.routes.models import ROOM as MODELS
from openai_cpu_server.api.routes.page import ROOM as PAGE
from openai_cpu_server.api.routes.requests import ROOM as REQUESTS
from openai_cpu_server.api.routes.stats import ROOM as STATS
from openai_cpu_server.api.routes.tokens import ROOM as TOKENS
from openai_cpu_server.api.routes.usage import ROOM as USAGE
from openai_cpu_server.http.openapi import ROW as DOCUMENT
from openai_cpu_server.http.routes import RouteRoom, RouteRow

ROOMS: Sequence[RouteRoom[Parts, Any]] = (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MESSAGES,
    EMBEDDING_ROOM,
    RERANKING_ROOM,
    GENERATE,
    TOKENS,
    MODELS,
    KEEPING_ROOM,
    ADAPTERS,
    REQUESTS,
    CACHE,
    FILES,
    BATCHES,
    USAGE,
    HEALTH,
    METRICS_ROOM,
    STATS,
    EVENTS,
    PAGE,
)
ROWS: Sequence[RouteRow[Any]] = (*(row for room in ROOMS for row in room.rows), DOCUMENT)
"""The one table. Of a server some of them may be left out."""
