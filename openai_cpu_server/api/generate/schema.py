"""Bodies of `/generate`, `/v1/generate` and `/v1/generate/batch`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from openai_cpu_server.api.generation.params import JsonObject
from openai_cpu_server.api.generation.schema import GenerationBody, OutputLimit

MAX_ITEMS = 1024
"""Default limit of sequences in one call of another family."""
_OLD_NAMES = {"high": "interactive", "normal": "interactive", "low": "batch"}
PriorityName = Annotated[
    Literal["interactive", "batch", "high", "normal", "low"],
    AfterValidator(lambda name: _OLD_NAMES.get(name, name)),
]


class GenerateFields(GenerationBody):
    max_tokens: OutputLimit = None
    format: Literal["text", "json"] | None = None
    """Always JSON with a `json_schema`."""
    raw: bool | None = None
    """True to continue the prompt as text. Otherwise it is a user's message for models that can chat."""
    priority: PriorityName | None = None


class GenerateBody(GenerateFields):
    prompt: Annotated[str, Field(min_length=1)]


class GenerateBatchBody(GenerateFields):
    """Body with exactly one of the lists. Other fields are defaults for each request."""

    prompts: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None = None
    requests: (
        Annotated[list[JsonObject], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None
    ) = None
