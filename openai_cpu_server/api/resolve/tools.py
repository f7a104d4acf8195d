"""Which functions a body offers to the model, and what it may or must do with them. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence

import msgspec

from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.api.schemas.structured import JsonObject
from openai_cpu_server.api.schemas.tools import AllowedChoice, FunctionName, LegacyFunction, NamedTool
from openai_cpu_server.errors import InvalidRequest


class ToolUse(enum.Enum):
    AUTO = "auto"
    """Text, or calls."""
    REQUIRED = "required"
    NAMED = "named"
    """One call of the one function."""


class OfferedFunction(msgspec.Struct, frozen=True):
    name: str
    param: str
    """The path of its schema in the body."""
    parameters: JsonObject | None
    is_strict: bool


class ToolPlan(msgspec.Struct, frozen=True):
    shown: Sequence[Mapping[str, object]]
    """All tools, for the chat template, as OpenAI writes them."""
    callable: tuple[OfferedFunction, ...]
    """Those that the model may call."""
    use: ToolUse
    several: bool
    is_legacy: bool
    """They were asked for by `functions`, and are answered with `function_call`."""


def tool_plan(body: ChatBody) -> ToolPlan | None:
    """None: there are no tools, or none that may be called or shown. Raises InvalidRequest."""
    if body.functions:
        return _legacy_plan(body, body.functions)
    _only_with("functions", function_call=_demand(body.function_call))
    if not body.tools:
        _only_with("tools", tool_choice=_demand(body.tool_choice))
        return None
    given = [(tool.function, f"tools[{index}].function") for index, tool in enumerate(body.tools)]
    strict = {tool.function.name for tool in body.tools if tool.function.strict}
    use, names = _chosen(body)
    _check_names(given)
    if names is not None:
        _check_known(names, [function.name for function, _ in given])
    if use is None:
        return None
    return ToolPlan(
        shown=[_shown(function) for function, _ in given],
        callable=_callables(given, names, strict),
        use=use,
        several=use is not ToolUse.NAMED and body.parallel_tool_calls is not False,
        is_legacy=False,
    )


def _demand(choice: object) -> object:
    """None: without functions it asks for nothing."""
    return None if choice in ("none", "auto") else choice


def _chosen(body: ChatBody) -> tuple[ToolUse | None, list[str] | None]:
    """What is to be done, and the names of the functions to choose from; None: all."""
    match body.tool_choice:
        case None:
            return ToolUse.AUTO, None
        case "none":
            return None, None
        case NamedTool(function=FunctionName(name=name)):
            return ToolUse.NAMED, [name]
        case AllowedChoice(allowed_tools=allowed):
            return ToolUse(allowed.mode), [tool.function.name for tool in allowed.tools]
        case mode:
            return ToolUse(mode), None


def _legacy_plan(body: ChatBody, functions: Sequence[LegacyFunction]) -> ToolPlan | None:
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        if getattr(body, name) is not None:
            message = f"'{name}' and 'functions' cannot be combined; 'functions' is deprecated."
            raise InvalidRequest(message, param="functions", code="invalid_value")
    given = [(function, f"functions[{index}]") for index, function in enumerate(functions)]
    _check_names(given)
    if body.function_call == "none":
        return None
    names = [body.function_call.name] if isinstance(body.function_call, FunctionName) else None
    if names is not None:
        _check_known(names, [function.name for function in functions], param="function_call")
    return ToolPlan(
        shown=[_shown(function) for function in functions],
        callable=_callables(given, names, strict=()),
        use=ToolUse.AUTO if names is None else ToolUse.NAMED,
        several=False,
        is_legacy=True,
    )


def _callables(
    given: Sequence[tuple[LegacyFunction, str]], names: Collection[str] | None, strict: Collection[str]
) -> tuple[OfferedFunction, ...]:
    return tuple(
        OfferedFunction(function.name, f"{path}.parameters", function.parameters, function.name in strict)
        for function, path in given
        if names is None or function.name in names
    )


def _shown(function: LegacyFunction) -> dict[str, object]:
    """Templates expect all three fields."""
    described = {"name": function.name, "description": function.description or ""}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**described, "parameters": parameters}}


def _check_names(given: Sequence[tuple[LegacyFunction, str]]) -> None:
    seen: set[str] = set()
    for function, path in given:
        if function.name in seen:
            message = f"There are several functions of the name '{function.name}'."
            raise InvalidRequest(message, param=f"{path}.name", code="invalid_value")
        seen.add(function.name)


def _check_known(names: Sequence[str], known: Collection[str], param: str = "tool_choice") -> None:
    for name in names:
        if name not in known:
            message = f"'{param}' names '{name[:64]}', which is none of the functions given."
            raise InvalidRequest(message, param=param, code="invalid_value")


def _only_with(name: str, **fields: object) -> None:
    for param, value in fields.items():
        if value is not None:
            message = f"'{param}' is only allowed together with '{name}'."
            raise InvalidRequest(message, param=param, code="invalid_value")
