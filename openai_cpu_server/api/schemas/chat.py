"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.numbers import Several, TopLogprobs
from openai_cpu_server.api.schemas.reasoning import ReasoningBody
from openai_cpu_server.api.schemas.tools import FunctionCall, Functions, ToolChoice, Tools
from openai_cpu_server.api.schemas.unheeded import MESSAGE_REFUSALS, Refusals
from openai_cpu_server.api.schemas.unions import LACKS, TEXT_OR_LIST


def _refuse_part(kind: object) -> object:
    if not isinstance(kind, str) or kind == "text":
        return kind
    lack = LACKS.get(kind, f"content of type '{kind[:64]}' is not supported")
    raise PydanticCustomError("part_type", "{lack}; only parts of type 'text' are taken", {"lack": lack})


class TextPart(Body):
    is_open: ClassVar[bool] = True

    type: Annotated[Literal["text"], BeforeValidator(_refuse_part)]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _refused_before(cls, part: object) -> object:
        """What a model has once refused to say, some other service's maybe, is text as any other."""
        if isinstance(part, dict) and part.get("type") == "refusal" and "text" not in part:
            return {**part, "type": "text", "text": part.get("refusal")}
        return part


Content = Annotated[
    Union[
        Annotated[str, Tag("<text>")],
        Annotated[list[TextPart], Field(fail_fast=True), Tag("<list>")],
    ],
    TEXT_OR_LIST,
]


class CalledFunction(Body):
    is_open: ClassVar[bool] = True

    name: str
    arguments: str


class ToolCall(Body):
    is_open: ClassVar[bool] = True

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """Clients keep notes of their own in messages, and send back what came with an answer."""

    is_open: ClassVar[bool] = True
    refusals: ClassVar[Refusals] = MESSAGE_REFUSALS

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    refusal: str | None = None
    """What an assistant said in place of a content."""
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
