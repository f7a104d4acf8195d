"""The route of text completions."""

from __future__ import annotations

from openai_cpu_server.api.access.access import CALLS
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.api.render.completion import TextCompletion
from openai_cpu_server.api.routes.completions import CompletionFamily
from openai_cpu_server.api.routes.generation import GenerationRoute
from openai_cpu_server.api.schemas.completion import CompletionBody
from openai_cpu_server.http.routes import GENERATION_ERRORS, RouteRoom, RouteRow

ROOM = RouteRoom[Parts, GenerationRoute[CompletionBody]](
    lambda parts: GenerationRoute(CompletionFamily(), parts.models, parts.options, parts.recall),
    (
        RouteRow(
            "POST",
            "/v1/completions",
            lambda at: at.create,
            access=CALLS,
            summary="Continue a text, whole or as server-sent events",
            tag="Generation",
            body=CompletionBody,
            answer=TextCompletion,
            streams=True,
            errors=GENERATION_ERRORS,
            batched=lambda at: at.answer,
        ),
    ),
)
