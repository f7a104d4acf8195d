"""The route of text completions."""

from __future__ import annotations

from openai_cpu_server.api.access.access import CALLS
from openai_cpu_server.api.completions.as_ask import completion_ask
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.api.render.completion import CompletionRenderer, TextCompletion
from openai_cpu_server.api.routes.generation import BodyReader, Family, GenerationRoute
from openai_cpu_server.api.schemas.completion import CompletionBody
from openai_cpu_server.http.routes import GENERATION_ERRORS, RouteRoom, RouteRow

COMPLETIONS = Family(BodyReader(CompletionBody, completion_ask), CompletionRenderer())
ROOM = RouteRoom[Parts, GenerationRoute](
    lambda parts: GenerationRoute(COMPLETIONS, parts.generation, parts.options),
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
