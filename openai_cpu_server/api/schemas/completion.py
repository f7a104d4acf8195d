"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.numbers import Count, Several
from openai_cpu_server.api.schemas.unions import Prompt
from openai_cpu_server.json_size import MOST_TOKENS


class CompletionBody(GenerationBody):
    most_numbers: ClassVar[int] = MOST_TOKENS

    prompt: Prompt
    suffix: str | None = None
    max_tokens: Count | None = None
    best_of: Several | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
