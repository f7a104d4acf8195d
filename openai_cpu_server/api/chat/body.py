"""The body of `POST /v1/chat/completions`: messages, functions, and what roles demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.asking.body import (
    LACKS,
    MAX_TOOLS,
    GenerationBody,
    JsonObject,
    Listed,
    Name,
    OpenBody,
    ReasoningBody,
    Several,
    Some,
    TextOrList,
    TopLogprobs,
    text_or_object,
)
from openai_cpu_server.errors import InvalidRequest, missing, wrong
from openai_cpu_server.http.parse import Body
from openai_cpu_server.http.unheeded import MESSAGE_REFUSALS, Refusals


def _refuse_tool(kind: object) -> object:
    if isinstance(kind, str) and kind != "function":
        message = "tools of type '{kind}' are not supported, only 'function'"
        raise PydanticCustomError("tool_type", message, {"kind": kind[:64]})
    return kind


Kind = Annotated[Literal["function"], BeforeValidator(_refuse_tool)]


class LegacyFunction(OpenBody):
    """An element of the deprecated `functions`."""

    name: Name
    description: str | None = None
    parameters: JsonObject | None = None


class Function(LegacyFunction):
    strict: bool | None = None


class Tool(OpenBody):
    type: Kind
    function: Function


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Kind
    function: FunctionName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Some[NamedTool]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<mode>"
    if not isinstance(value, dict):
        return None
    return "<allowed>" if value.get("type") == "allowed_tools" else "<named>"


ToolChoice = Annotated[
    Union[
        Annotated[Literal["none", "auto", "required"], Tag("<mode>")],
        Annotated[NamedTool, Tag("<named>")],
        Annotated[AllowedChoice, Tag("<allowed>")],
    ],
    Discriminator(
        _choice_kind,
        custom_error_type="tool_choice",
        custom_error_message="Input should be 'none', 'auto', 'required' or an object",
    ),
]


FunctionCall = Annotated[
    Union[Annotated[Literal["none", "auto"], Tag("<text>")], Annotated[FunctionName, Tag("<object>")]],
    Discriminator(
        text_or_object,
        custom_error_type="function_call",
        custom_error_message="Input should be 'none', 'auto' or an object with a 'name'",
    ),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
Functions = Annotated[list[LegacyFunction], Field(max_length=MAX_TOOLS, fail_fast=True)]


def _refuse_part(kind: object) -> object:
    if not isinstance(kind, str) or kind == "text":
        return kind
    lack = LACKS.get(kind, f"content of type '{kind[:64]}' is not supported")
    raise PydanticCustomError("part_type", "{lack}; only parts of type 'text' are taken", {"lack": lack})


class TextPart(OpenBody):
    type: Annotated[Literal["text"], BeforeValidator(_refuse_part)]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _refused_before(cls, part: object) -> object:
        """What a model has once refused to say, some other service's maybe, is text as any other."""
        if isinstance(part, dict) and part.get("type") == "refusal" and "text" not in part:
            return {**part, "type": "text", "text": part.get("refusal")}
        return part


Content = TextOrList[Listed[TextPart]]


class SentFunction(OpenBody):
    name: str
    arguments: str


class SentToolCall(OpenBody):
    id: str
    type: Literal["function"] = "function"
    function: SentFunction


class Message(OpenBody):
    """Clients keep notes of their own in messages, and send back what came with an answer."""

    refusals: ClassVar[Refusals] = MESSAGE_REFUSALS

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    refusal: str | None = None
    """What an assistant said in place of a content."""
    name: str | None = None
    tool_calls: Listed[SentToolCall] | None = None
    tool_call_id: str | None = None
    function_call: SentFunction | None = None
    """Deprecated, like the role `function`."""
    reasoning_content: str | None = None
    """What the assistant thought before it said this."""
    reasoning: str | None = None
    """The newer name of it."""
    thinking: str | None = None
    """gpt-oss' and Ollama's name of it."""


Messages = Some[Message]


class ChatBody(GenerationBody, ReasoningBody):
    messages: Messages
    max_completion_tokens: Several | None = None
    max_tokens: Several | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    """Deprecated, like `function_call`: the answer then has a `function_call`, too."""
    function_call: FunctionCall | None = None


def checked_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """The messages as `prompt` takes them: known fields only, deprecated ones by their new names.

    Raises InvalidRequest.
    """
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    return [_known_fields(message) for message in messages]


def _check(message: Message, at: str) -> None:
    has_content = message.content not in (None, []) or message.refusal is not None
    says = has_content or (message.role == "assistant" and reasoning_of(message))
    if not says and not message.tool_calls and not message.function_call:
        raise missing(f"{at}.content")
    if message.function_call and message.role != "assistant":
        raise _misplaced(f"{at}.function_call", "assistant")
    if message.name is None and message.role == "function":
        raise missing(f"{at}.name")
    if message.tool_calls and message.role != "assistant":
        raise _misplaced(f"{at}.tool_calls", "assistant")
    if message.tool_call_id is not None and message.role != "tool":
        raise _misplaced(f"{at}.tool_call_id", "tool")
    if message.tool_call_id is None and message.role == "tool":
        raise missing(f"{at}.tool_call_id")


def reasoning_of(message: Message) -> str | None:
    """Clients send it back under the name that they read, or under all."""
    return message.reasoning_content or message.reasoning or message.thinking


def _known_fields(message: Message) -> dict[str, object]:
    fields: dict[str, object] = {"role": message.role}
    if isinstance(message.content, list):
        fields["content"] = [{"type": part.type, "text": part.text} for part in message.content]
    else:
        fields["content"] = message.refusal if message.content is None else message.content
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.role == "assistant" and (reasoning := reasoning_of(message)):
        fields["reasoning_content"] = reasoning
    return fields | _legacy_fields(message)


def _legacy_fields(message: Message) -> dict[str, object]:
    """A deprecated call has no id: its function's name says what its result belongs to."""
    if message.role == "function":
        return {"role": "tool", "tool_call_id": f"function_{message.name}"}
    if message.function_call is not None:
        call = SentToolCall(
            id=f"function_{message.function_call.name}", type="function", function=message.function_call
        )
        return {"tool_calls": [_tool_call(call)]}
    return {}


def _tool_call(call: SentToolCall) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _misplaced(param: str, role: str) -> InvalidRequest:
    return wrong(f"'{param}' belongs to messages of role '{role}'.", param)
