from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation import schema as shared
from openai_cpu_server.api.generation.params import JsonObject
from openai_cpu_server.http.ignored_params import MESSAGE_UNSUPPORTED, UnsupportedParams
from openai_cpu_server.http.parse import Body, by_type, by_value


def _refuse_choice(kind: object) -> object:
    if isinstance(kind, str) and kind != "function":
        message = "the choice of a tool of type '{kind}' is not supported, only 'function' and 'custom'"
        raise PydanticCustomError("tool_type", message, {"kind": kind[:64]})
    return kind


class LegacyFunction(shared.OpenBody):
    name: shared.Name
    description: str | None = None
    parameters: shared.ToolSchema | None = None


class Function(LegacyFunction):
    strict: bool | None = None


class Tool(shared.OpenBody):
    type: Literal["function"]
    function: Function


class NestedGrammarFormat(shared.OpenBody):
    type: Literal["grammar"]
    grammar: shared.Syntax


class Custom(shared.OpenBody):
    name: shared.Name
    description: str | None = None
    format: Annotated[Union[NestedGrammarFormat, shared.AnyText], shared.CUSTOM_FORMAT] | None = None


class ChatTextTool(shared.OpenBody):
    type: Literal["custom"]
    custom: Custom


_AnyTool = Annotated[Union[Tool, ChatTextTool, shared.ForeignKind], by_type()]
"""Unsupported types are left out."""


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Annotated[Literal["function"], BeforeValidator(_refuse_choice)]
    function: FunctionName


class NamedCustom(Body):
    type: Literal["custom"]
    custom: FunctionName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: shared.NonEmptyList[Annotated[Union[NamedTool, NamedCustom, shared.ForeignKind], by_type()]]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<mode>"
    if not isinstance(value, dict):
        return None
    return {"allowed_tools": "<allowed>", "custom": "<custom>"}.get(str(value.get("type")), "<named>")


_ToolChoice = Annotated[
    Union[
        Annotated[Literal["none", "auto", "required"], Tag("<mode>")],
        Annotated[NamedTool, Tag("<named>")],
        Annotated[NamedCustom, Tag("<custom>")],
        Annotated[AllowedChoice, Tag("<allowed>")],
    ],
    Discriminator(
        _choice_kind,
        custom_error_type="tool_choice",
        custom_error_message="Input should be 'none', 'auto', 'required' or an object",
    ),
]
FunctionCall = Annotated[
    Union[Literal["none", "auto"], FunctionName],
    by_value("function_call", "Input should be 'none', 'auto' or an object with a 'name'"),
]
Tools = Annotated[list[_AnyTool], Field(max_length=shared.MAX_TOOLS, fail_fast=True)]
Functions = Annotated[list[LegacyFunction], Field(max_length=shared.MAX_TOOLS, fail_fast=True)]


class TextPart(shared.OpenBody):
    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _refused_before(cls, part: object) -> object:
        """Take a refusal, maybe of another service, for text."""
        if isinstance(part, dict) and part.get("type") == "refusal" and "text" not in part:
            return {**part, "text": part.get("refusal")}
        return part


REASONING_TYPES = ("thinking", "reasoning")
"""Parts of Mistral and LangChain."""
_Part = Annotated[Union[TextPart, shared.ForeignKind], by_type()]
_Content = shared.TextOrList[shared.ListOf[_Part]]


class SentFunction(shared.OpenBody):
    name: str
    arguments: str | JsonObject | None = None
    """Text from this server. Other servers write objects or nothing."""


class SentToolCall(shared.OpenBody):
    id: str
    type: Literal["function"] = "function"
    function: SentFunction

    @model_validator(mode="before")
    @classmethod
    def _of_other_tools(cls, call: object) -> object:
        """Accept a custom tool's call, as other services write it."""
        custom = call.get("custom") if isinstance(call, dict) and call.get("type") == "custom" else None
        if not isinstance(call, dict) or not isinstance(custom, dict):
            return call
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {"id": call.get("id"), "type": "function", "function": function}


class Message(shared.OpenBody):
    """Message with ignored unknown fields, because clients add notes and send back what came with an
    answer."""

    unsupported: ClassVar[UnsupportedParams] = MESSAGE_UNSUPPORTED

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: _Content | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: shared.ListOf[SentToolCall] | None = None
    tool_call_id: str | None = None
    function_call: SentFunction | None = None
    """Deprecated, like the role `function`."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Newer name."""
    thinking: str | None = None
    """Name of gpt-oss and Ollama."""


Messages = shared.NonEmptyList[Message]


class ChatBody(shared.GenerationBody, shared.ReasoningBody, shared.PredictionBody):
    messages: Messages
    max_completion_tokens: shared.OutputLimit = None
    max_tokens: shared.OutputLimit = None
    truncate_prompt_tokens: shared.LastTokens | None = None
    """vLLM's number of last tokens, or -1 for as many as fit."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """vLLM's and llama-server's. An assistant's last message is always continued, so both must agree."""
    logprobs: bool | None = None
    top_logprobs: shared.TopLogprobs | None = None
    tools: Tools | None = None
    tool_choice: _ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    """Name among the model's templates, such as `tool_use`."""
    functions: Functions | None = None
    """Deprecated. The answer then has a `function_call`, too."""
    function_call: FunctionCall | None = None
