from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Union

from pydantic import Field, JsonValue

from openai_cpu_server.api.generation import schema as shared
from openai_cpu_server.api.generation.params import JsonObject
from openai_cpu_server.http.ignored_params import (
    IgnoredParam,
    IgnoredParams,
    UnsupportedParam,
    UnsupportedParams,
)
from openai_cpu_server.http.parse import by_type

_MAX_TOOLS = 512
"""More than OpenAI's 128, for agents with many tool servers."""
NO_THREADS = "thread_unsupported_request"
"""Makes Anthropic's SDKs send the whole conversation."""
_SERVICE = IgnoredParam("it is for a service of Anthropic")
SERVICE_IGNORED: IgnoredParams = dict.fromkeys(
    (
        "billing_policy",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "speed",
        "user_profile_id",
        "workspace_id",
    ),
    _SERVICE,
)
SERVICE_UNSUPPORTED: UnsupportedParams = {
    "compaction": UnsupportedParam("conversations are not summarised"),
    "mcp_servers": UnsupportedParam("only the Responses API calls MCP servers", ([],)),
    "thread": UnsupportedParam("conversations are not stored; send all messages", code=NO_THREADS),
}
_UNCOUNTED = IgnoredParam("it is for answers, and this route generates nothing")


class Cacheable(shared.OpenBody):
    cache_control: JsonValue = None
    """Ignored, because every prompt is cached."""


class TextBlock(Cacheable):
    type: Literal["text"]
    text: str


class ThinkingBlock(Cacheable):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None
    """Ignored proof of the author."""


class RedactedThinkingBlock(Cacheable):
    """Reasoning that only its author can read, hidden from the model."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Cacheable):
    type: Literal["tool_use"]
    id: shared.NonEmpty
    name: shared.NonEmpty
    input: JsonObject


class ToolResultBlock(Cacheable):
    type: Literal["tool_result"]
    tool_use_id: shared.NonEmpty
    content: ResultContent | None = None
    is_error: bool | None = None


InputBlock = Annotated[
    Union[TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock, ToolResultBlock, shared.ForeignKind],
    by_type(),
]
OnlyText = Annotated[Union[TextBlock, shared.ForeignKind], by_type()]
ResultContent = shared.TextOrList[shared.ListOf[OnlyText]]
_Content = shared.TextOrList[shared.ListOf[InputBlock]]


class InputMessage(shared.OpenBody):
    role: Literal["user", "assistant", "system"]
    content: _Content


class CustomTool(Cacheable):
    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: shared.ToolSchema
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    """Ignored, because arguments are always streamed."""


_AnyTool = Annotated[Union[CustomTool, shared.ForeignKind], by_type()]
"""Anthropic's own tools, such as `web_search_20250305`, are left out."""


class ToolChoice(shared.OpenBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(shared.OpenBody):
    user_id: str | None = None


class ThinkingOptions(shared.OpenBody):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: shared.PositiveCount | None = None
    display: Literal["summarized", "omitted"] | None = None
    """`omitted`: reason without showing it."""


class OutputFormat(shared.OpenBody):
    type: Literal["json_schema"]
    json_schema: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(shared.OpenBody):
    effort: shared.Effort | None = None
    format: OutputFormat | None = None


_ANSWERING = (
    "max_tokens",
    "stream",
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "metadata",
    "service_tier",
    "cache",
)


class CountBody(Cacheable):
    """Fields that determine the prompt's length. Fields that only concern the answer are ignored."""

    is_open: ClassVar[bool] = False
    unsupported: ClassVar[UnsupportedParams] = SERVICE_UNSUPPORTED
    ignored: ClassVar[IgnoredParams] = {**SERVICE_IGNORED, **dict.fromkeys(_ANSWERING, _UNCOUNTED)}

    model: str | None = None
    messages: shared.NonEmptyList[InputMessage]
    system: ResultContent | None = None
    tools: Annotated[list[_AnyTool], Field(max_length=_MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """Former name of `output_config.format`."""


class MessagesBody(CountBody, shared.ProgressBody):
    ignored: ClassVar[IgnoredParams] = SERVICE_IGNORED

    max_tokens: shared.PositiveCount
    stream: bool | None = None
    stop_sequences: Annotated[list[shared.NonEmpty], Field(max_length=16, fail_fast=True)] | None = None
    temperature: shared.Temperature | None = None
    top_p: shared.Probability | None = None
    top_k: shared.TopK | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    """Ignored, because there is one tier. `X-Priority` sets the priority."""
    cache: bool | None = None
    """Extension. False neither uses nor stores a cached answer."""
