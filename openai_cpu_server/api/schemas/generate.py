"""The bodies of `POST /generate`, `/v1/generate` and `/v1/generate/batch`: an older server's names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.numbers import Several
from openai_cpu_server.api.schemas.structured import JsonObject

MAX_ITEMS = 1024
"""As many as one call of another family may have sequences, by default."""
_OLD_NAMES = {"high": "interactive", "normal": "interactive", "low": "batch"}


def _present_name(priority: str) -> str:
    return _OLD_NAMES.get(priority, priority)


PriorityName = Annotated[
    Literal["interactive", "batch", "high", "normal", "low"], AfterValidator(_present_name)
]


class GenerateFields(GenerationBody):
    """What these bodies have beside the common fields, prompts aside."""

    max_tokens: Several | None = None
    format: Literal["text", "json"] | None = None
    """With a `json_schema` it is JSON anyway."""
    raw: bool | None = None
    """The prompt is a text to continue; else it is what a user says, if the model can chat."""
    priority: PriorityName | None = None


class GenerateBody(GenerateFields):
    prompt: Annotated[str, Field(min_length=1)]


class GenerateBatchBody(GenerateFields):
    """Exactly one of the lists; all else is for every request that does not have it itself."""

    prompts: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None = None
    requests: (
        Annotated[list[JsonObject], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None
    ) = None
