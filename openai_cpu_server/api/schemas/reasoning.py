"""Whether and how long a model is to think, under the names that APIs have given to that."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.numbers import Budget, Count
from openai_cpu_server.api.schemas.structured import JsonObject

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class Reasoning(Body):
    """OpenRouter's object."""

    is_open: ClassVar[bool] = True

    effort: Effort | None = None
    max_tokens: Count | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    """The model thinks, and the answer does not tell what."""


class ThinkingSwitch(Body):
    """Anthropic's object, which DeepSeek, GLM and Kimi have in chat completions."""

    is_open: ClassVar[bool] = True

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Count | None = None


class ReasoningBody(Body):
    """The fields of a body; those that mean the same must agree."""

    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    thinking: ThinkingSwitch | None = None
    enable_thinking: bool | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Budget | None = None
    """vLLM's name of it."""
    thinking_budget_tokens: Budget | None = None
    """llama-server's name of it."""
    include_reasoning: bool | None = None
    chat_template_kwargs: Annotated[JsonObject, Field(max_length=64)] | None = None
    """Further variables for the chat template."""
