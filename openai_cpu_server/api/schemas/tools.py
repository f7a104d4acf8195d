"""Functions that the model may call, and which of them it must."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.structured import JsonObject, Name
from openai_cpu_server.api.schemas.unions import MAX_TOOLS


def _refuse_tool(kind: object) -> object:
    if isinstance(kind, str) and kind != "function":
        message = "tools of type '{kind}' are not supported, only 'function'"
        raise PydanticCustomError("tool_type", message, {"kind": kind[:64]})
    return kind


Kind = Annotated[Literal["function"], BeforeValidator(_refuse_tool)]


class LegacyFunction(Body):
    """An element of the deprecated `functions`."""

    is_open: ClassVar[bool] = True

    name: Name
    description: str | None = None
    parameters: JsonObject | None = None


class Function(LegacyFunction):
    strict: bool | None = None


class Tool(Body):
    is_open: ClassVar[bool] = True

    type: Kind
    function: Function


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Kind
    function: FunctionName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, fail_fast=True)]


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


def _legacy_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<mode>"
    return "<named>" if isinstance(value, dict) else None


FunctionCall = Annotated[
    Union[
        Annotated[Literal["none", "auto"], Tag("<mode>")],
        Annotated[FunctionName, Tag("<named>")],
    ],
    Discriminator(
        _legacy_kind,
        custom_error_type="function_call",
        custom_error_message="Input should be 'none', 'auto' or an object with a 'name'",
    ),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
Functions = Annotated[list[LegacyFunction], Field(max_length=MAX_TOOLS, fail_fast=True)]
