"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Literal, Union

from pydantic import BeforeValidator, Field, Tag
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.reasoning import ReasoningBody
from openai_cpu_server.api.schemas.tools import FunctionCall, Functions, ToolChoice, Tools
from openai_cpu_server.api.schemas.unions import TEXT_OR_LIST


def _refuse_others(kind: object) -> object:
    if isinstance(kind, str) and kind != "text":
        message = "content of type '{kind}' is not supported, only 'text'"
        raise PydanticCustomError("part_type", message, {"kind": kind[:64]})
    return kind


class TextPart(Body):
    type: Annotated[Literal["text"], BeforeValidator(_refuse_others)]
    text: str


Content = Annotated[
    Union[
        Annotated[str, Tag("<text>")],
        Annotated[list[TextPart], Field(min_length=1, fail_fast=True), Tag("<list>")],
    ],
    TEXT_OR_LIST,
]


class CalledFunction(Body):
    name: str
    arguments: str


class ToolCall(Body):
    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    """Deprecated, like the role `function`."""
    reasoning_content: str | None = None
    """What the assistant thought before it said this."""
    reasoning: str | None = None
    """The newer name of it."""
    thinking: str | None = None
    """gpt-oss' and Ollama's name of it."""


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class ChatBody(GenerationBody, ReasoningBody):
    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    """Deprecated, like `function_call`: the answer then has a `function_call`, too."""
    function_call: FunctionCall | None = None
