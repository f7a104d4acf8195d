"""The fields that bodies of several families have, under the names that APIs have given to them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.asking.fields import (
    Bias,
    Budget,
    Choices,
    Count,
    JsonObject,
    Penalty,
    RepeatPenalty,
    ResponseFormat,
    SchemaOrText,
    Seconds,
    Seed,
    Several,
    Share,
    Stop,
    StructuredOutputs,
    Temperature,
    TopK,
    TypicalP,
)
from openai_cpu_server.http.parse import Body
from openai_cpu_server.http.unheeded import (
    GENERATION_HINTS,
    GENERATION_REFUSALS,
    STREAM_HINTS,
    STREAM_REFUSALS,
    Hints,
    Refusals,
)

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class OpenRouterReasoning(Body):
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
    reasoning: OpenRouterReasoning | None = None
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


Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]
Notes = Annotated[dict[Key, Value], Field(max_length=16, fail_fast=True)]
LogitBias = Annotated[dict[str, Bias], Field(fail_fast=True)]


class StreamOptions(Body):
    hints: ClassVar[Hints] = STREAM_HINTS
    refusals: ClassVar[Refusals] = STREAM_REFUSALS

    include_usage: bool | None = None


def _named_adapter(value: object) -> object:
    """llama-server takes a list of ids or names with scales here."""
    if value is None or (isinstance(value, str) and value):
        return value
    raise PydanticCustomError(
        "lora",
        "Input should be the name of an adapter (several at once, or a scale per request, are not supported)",
    )


AdapterName = Annotated[str, PlainValidator(_named_adapter, json_schema_input_type=str)]


Tier = Annotated[str, Field(max_length=64)]
"""Any name: other services have others. See `unheeded.TIERS`."""


class SharedBody(Body):
    """Fields that mean the same in most families. How to sample is told by `resolve/sampling.py`, all else by
    `asking/bodies.py`."""

    model: str | None = None
    stream: bool | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    user: str | None = None
    safety_identifier: str | None = None
    """What OpenAI calls `user` now."""
    metadata: Notes | None = None
    service_tier: Tier | None = None

    # Ours, under the names that llama-server and vLLM use.
    top_k: TopK | None = None
    min_p: Share | None = None
    typical_p: TypicalP | None = None
    repeat_penalty: RepeatPenalty | None = None
    repeat_last_n: Count | None = None
    ignore_eos: bool | None = None
    lora: AdapterName | None = None
    """An adapter of the model; the same as `model: "MODEL:ADAPTER"`."""
    priority: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    cache: bool | None = None
    """`false`: neither answer from the cache of answers nor keep this answer there."""
    timeout: Seconds | None = None
    """Seconds that the call may take, waiting included."""

    # What the output must look like; at most one of these, and of what else a family has for that.
    grammar: str | None = None
    regex: str | None = None
    choice: Choices | None = None


class GenerationBody(SharedBody):
    """What chat, text completions and `/generate` have beside that."""

    hints: ClassVar[Hints] = GENERATION_HINTS
    refusals: ClassVar[Refusals] = GENERATION_REFUSALS

    stream_options: StreamOptions | None = None
    n: Several | None = None
    stop: Stop | None = None
    response_format: ResponseFormat | None = None
    json_schema: JsonObject | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
