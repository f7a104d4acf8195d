"""Body of `POST /v1/chat/completions`: messages, functions, and checks of each role's fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation.params import Attachment
from openai_cpu_server.api.generation.schema import (
    CUSTOM_FORMAT,
    MAX_TOOLS,
    AnyText,
    ForeignKind,
    GenerationBody,
    JsonObject,
    LastTokens,
    ListOf,
    Name,
    NonEmptyList,
    OpenBody,
    OutputLimit,
    PredictionBody,
    ReasoningBody,
    Syntax,
    TextOrList,
    TopLogprobs,
    by_type,
    text_or_object,
    words_in,
)
from openai_cpu_server.errors import InvalidRequest, missing, wrong
from openai_cpu_server.http.ignored_params import MESSAGE_REFUSALS, Refusals
from openai_cpu_server.http.parse import Body
from openai_cpu_server.prompt.template import to_json


def _refuse_choice(kind: object) -> object:
    if isinstance(kind, str) and kind != "function":
        message = "the choice of a tool of type '{kind}' is not supported, only 'function' and 'custom'"
        raise PydanticCustomError("tool_type", message, {"kind": kind[:64]})
    return kind


class LegacyFunction(OpenBody):
    name: Name
    description: str | None = None
    parameters: JsonObject | None = None


class Function(LegacyFunction):
    strict: bool | None = None


class Tool(OpenBody):
    type: Literal["function"]
    function: Function


class NestedGrammarFormat(OpenBody):
    type: Literal["grammar"]
    grammar: Syntax


class Custom(OpenBody):
    name: Name
    description: str | None = None
    format: (
        Annotated[
            Union[Annotated[NestedGrammarFormat, Tag("<grammar>")], Annotated[AnyText, Tag("<text>")]],
            CUSTOM_FORMAT,
        ]
        | None
    ) = None


class ChatTextTool(OpenBody):
    type: Literal["custom"]
    custom: Custom


AnyTool = Annotated[
    Union[
        Annotated[Tool, Tag("<function>")],
        Annotated[ChatTextTool, Tag("<custom>")],
        Annotated[ForeignKind, Tag("<other>")],
    ],
    by_type("function", "custom"),
]
"""Tool of a chat. Types that are not supported here are left out."""


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
    tools: NonEmptyList[
        Annotated[
            Union[
                Annotated[NamedTool, Tag("<function>")],
                Annotated[NamedCustom, Tag("<custom>")],
                Annotated[ForeignKind, Tag("<other>")],
            ],
            by_type("function", "custom"),
        ]
    ]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<mode>"
    if not isinstance(value, dict):
        return None
    return {"allowed_tools": "<allowed>", "custom": "<custom>"}.get(str(value.get("type")), "<named>")


ToolChoice = Annotated[
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
    Union[Annotated[Literal["none", "auto"], Tag("<text>")], Annotated[FunctionName, Tag("<object>")]],
    Discriminator(
        text_or_object,
        custom_error_type="function_call",
        custom_error_message="Input should be 'none', 'auto' or an object with a 'name'",
    ),
]
Tools = Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
Functions = Annotated[list[LegacyFunction], Field(max_length=MAX_TOOLS, fail_fast=True)]


class TextPart(OpenBody):
    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _refused_before(cls, part: object) -> object:
        """Take a refusal, maybe one of another service, for text."""
        if isinstance(part, dict) and part.get("type") == "refusal" and "text" not in part:
            return {**part, "text": part.get("refusal")}
        return part


_THOUGHTS = ("thinking", "reasoning")
"""Types of parts with reasoning, from Mistral and LangChain."""
Part = Annotated[
    Union[Annotated[TextPart, Tag("<text>")], Annotated[ForeignKind, Tag("<other>")]],
    by_type("text", "input_text", "output_text", "refusal", tag="text"),
]
Content = TextOrList[ListOf[Part]]


class SentFunction(OpenBody):
    name: str
    arguments: str | JsonObject | None = None
    """Text from this server. Other servers have written objects, or nothing."""


class SentToolCall(OpenBody):
    id: str
    type: Literal["function"] = "function"
    function: SentFunction

    @model_validator(mode="before")
    @classmethod
    def _of_other_tools(cls, call: object) -> object:
        """Convert the call of a custom tool, as other services write it, to one of a function."""
        custom = call.get("custom") if isinstance(call, dict) and call.get("type") == "custom" else None
        if not isinstance(call, dict) or not isinstance(custom, dict):
            return call
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {"id": call.get("id"), "type": "function", "function": function}


class Message(OpenBody):
    """Message with ignored unknown fields, because clients add notes and send back what came with an
    answer."""

    refusals: ClassVar[Refusals] = MESSAGE_REFUSALS

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: ListOf[SentToolCall] | None = None
    tool_call_id: str | None = None
    function_call: SentFunction | None = None
    """Deprecated, like the role `function`."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Newer name."""
    thinking: str | None = None
    """Name of gpt-oss and Ollama."""


Messages = NonEmptyList[Message]


class ChatBody(GenerationBody, ReasoningBody, PredictionBody):
    messages: Messages
    max_completion_tokens: OutputLimit = None
    max_tokens: OutputLimit = None
    truncate_prompt_tokens: LastTokens | None = None
    """vLLM's number of last tokens to keep, or -1 for as many as fit."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """vLLM's and llama-server's. A last message of the assistant is always continued, so both fields must
    agree."""
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    """Name of one of the model's templates, such as `tool_use`."""
    functions: Functions | None = None
    """Deprecated, like `function_call`. The answer then has a `function_call`, too."""
    function_call: FunctionCall | None = None


def checked_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return the messages with known fields under their newest names. Raises InvalidRequest."""
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    if messages and messages[-1].role == "user":
        _check_question(messages[-1], f"messages[{len(messages) - 1}]")
    return [_known_fields(message) for message in messages]


def told_in_words(messages: Sequence[Message]) -> list[str]:
    return [
        part.named(f"messages[{index}].content[{at}]")
        for index, message in enumerate(messages)
        for at, part in enumerate(message.content if isinstance(message.content, list) else ())
        if isinstance(part, ForeignKind) and part.type not in _THOUGHTS and not part.is_attached
    ]


def attached_in(messages: Sequence[Message]) -> list[Attachment]:
    """Return all attachments. Images in the last message carry a refusal for models without vision."""
    found: list[Attachment] = []
    for index, message in enumerate(messages):
        is_latest = index == len(messages) - 1 and message.role == "user"
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, ForeignKind):
                at = f"messages[{index}].content[{number}]"
                refusal = _unseen(part, f"{at}.type") if is_latest else None
                attached = part.attached(at, is_latest=is_latest, refusal=refusal)
                found += [attached] if attached is not None else []
    return found


def _check(message: Message, at: str) -> None:
    has_content = message.content not in (None, []) or message.refusal is not None
    says = has_content or (message.role == "assistant" and reasoning_of(message))
    is_result = message.role in ("tool", "function")  # nothing is a result, too
    if not (says or is_result or message.tool_calls or message.function_call):
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


def _check_question(message: Message, at: str) -> None:
    """Reject unsupported parts only in the last message, so that earlier ones do not stop a conversation."""
    for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if isinstance(part, ForeignKind) and not part.is_attached:
            param = f"{at}.content[{index}].type"
            raise InvalidRequest(_unseen(part, param), param=param, code="unsupported_content")


def _unseen(part: ForeignKind, param: str) -> str:
    return f"Invalid value for '{param}': {part.lack}; only parts of type 'text' are taken."


def reasoning_of(message: Message) -> str | None:
    """Return the reasoning, which clients send back under one or all names, or as parts of the content."""
    said = message.reasoning_content or message.reasoning or message.thinking
    parts = message.content if isinstance(message.content, list) else ()
    others = [part for part in parts if isinstance(part, ForeignKind) and part.type in _THOUGHTS]
    thoughts = [words_in(part.fields.get("thinking") or part.fields.get("text")) for part in others]
    return said or "\n".join(thoughts) or None


def _known_fields(message: Message) -> dict[str, object]:
    fields: dict[str, object] = {"role": message.role}
    if isinstance(message.content, list):
        said = [part for part in message.content if part.type not in _THOUGHTS]
        texts = [part.words if isinstance(part, ForeignKind) else part.text for part in said]
        fields["content"] = [{"type": "text", "text": text} for text in texts]
    else:
        fields["content"] = message.content or message.refusal or ""
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
    """Name a deprecated call by its function, because the call has no id."""
    if message.role == "function":
        return {"role": "tool", "tool_call_id": f"function_{message.name}"}
    if message.function_call is not None:
        call = SentToolCall(
            id=f"function_{message.function_call.name}", type="function", function=message.function_call
        )
        return {"tool_calls": [_tool_call(call)]}
    return {}


def _tool_call(call: SentToolCall) -> dict[str, object]:
    given = call.function.arguments
    arguments = given if isinstance(given, str) else to_json(given or {})
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _misplaced(param: str, role: str) -> InvalidRequest:
    return wrong(f"'{param}' belongs to messages of role '{role}'.", param)
