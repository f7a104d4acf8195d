"""Conversion of a body, with all that it continues, to a `GenerationParams`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from pydantic import JsonValue

from openai_cpu_server.api.generation.output import check_no_choice
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    FormParam,
    FunctionParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    ReasoningParam,
    ToolsParam,
    ToolUse,
)
from openai_cpu_server.api.generation.schema import ForeignKind
from openai_cpu_server.api.generation.to_params import (
    any_object,
    check_stream_options,
    custom_tool,
    one_form,
    reasoning_param,
    schema_form,
    sent_fields,
    shared_forms,
    shared_params,
)
from openai_cpu_server.api.responses.body import (
    AllowedToolsChoice,
    FunctionTool,
    GrammarFormat,
    McpServerTool,
    NamedFunction,
    NamedMcpTool,
    NamespaceTool,
    ResponsesBody,
    TextFormat,
    TextTool,
)
from openai_cpu_server.api.responses.items import IN_NAMESPACE, named_for_models
from openai_cpu_server.errors import missing, wrong, wrong_value

LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
    }
)
"""Values of OpenAI's API. Only the first has an effect: others need missing tools, or are shown anyway."""
_TIERS = {"fast": "priority", "priority": "priority", "flex": "flex"}
_PATH = "input"


def _places(body: ResponsesBody) -> Iterator[tuple[str, str, FunctionTool | TextTool | ForeignKind]]:
    for index, tool in enumerate(body.tools or ()):
        at = f"tools[{index}]"
        if isinstance(tool, NamespaceTool):
            yield from (
                (f"{at}.tools[{i}]", f"{tool.name}{IN_NAMESPACE}", x) for i, x in enumerate(tool.tools)
            )
        elif not isinstance(tool, McpServerTool):
            yield at, "", tool


def left_out(body: ResponsesBody) -> list[str]:
    return [tool.named(at) for at, _, tool in _places(body) if isinstance(tool, ForeignKind)]


def check_supported(body: ResponsesBody) -> None:
    """Reject unsupported values. Raises InvalidRequest."""
    for index, wanted in enumerate(body.include or ()):
        if wanted not in _INCLUDABLE:
            known = ", ".join(f"'{name}'" for name in sorted(_INCLUDABLE))
            raise wrong_value(f"include[{index}]", f"one of {known}")
    check_stream_options(body.stream_options, stream=body.stream)


def response_ask(
    body: ResponsesBody, messages: Sequence[MessageParam], offered: Sequence[FunctionParam] = ()
) -> GenerationParams:
    """`messages`: instructions, earlier turns and this one. Raises InvalidRequest."""
    if not messages:
        raise missing(_PATH)
    conversation = ConversationParam(messages, _PATH, may_forget=body.truncation == "auto")
    ask = shared_params(
        body, conversation, id_prefix="resp_", form=None if body.is_compacting else one_form(_forms(body))
    )
    has_scores = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    limit = body.max_output_tokens
    return msgspec.structs.replace(
        ask,
        service_tier=_TIERS.get(body.service_tier or ""),
        max_tokens=None if limit is None else LimitParam(limit, "max_output_tokens"),
        logprobs=(body.top_logprobs or 0) if has_scores else None,
        tools=_tools(body, offered),
        thinking=_thinking(body),
        template=body.chat_template,
    )


def _thinking(body: ResponsesBody) -> ReasoningParam:
    return reasoning_param(
        efforts=sent_fields(body, "reasoning.effort"),
        switches=sent_fields(body, "enable_thinking"),
        budgets=sent_fields(body, "thinking_budget"),
        variables=body.chat_template_kwargs,
    )


def _forms(body: ResponsesBody) -> Iterator[FormParam]:
    if body.text is not None and body.text.format is not None:
        yield from _of_format(body.text.format)
    yield from shared_forms(body)


def _of_format(given: TextFormat) -> Iterator[FormParam]:
    at = "text.format"
    if given.type == "json_object":
        yield any_object(at)
    if given.type != "json_schema":
        return
    if given.name is None:
        raise missing(f"{at}.name")
    if given.json_schema is None:
        raise missing(f"{at}.schema")
    yield schema_form(given.json_schema, f"{at}.schema", strict=given.strict is not False, field=at)


def _tools(body: ResponsesBody, offered: Sequence[FunctionParam]) -> ToolsParam | None:
    places = _places(body)
    functions = [_asked(tool, at, stem) for at, stem, tool in places if not isinstance(tool, ForeignKind)]
    functions += offered
    if not functions:
        check_no_choice(body.tool_choice, without="tools", path="tool_choice")
        return None
    use, chosen = _choice(body, [each.name for each in functions])
    if body.is_compacting:
        return ToolsParam(functions=tuple(functions), use=None, is_shown=True)
    several = body.parallel_tool_calls is not False
    return ToolsParam(functions=tuple(functions), use=use, chosen=chosen, several=several)


def _choice(body: ResponsesBody, known: Sequence[str]) -> tuple[ToolUse | None, tuple[str, ...] | None]:
    match body.tool_choice:
        case NamedFunction(name=name, namespace=namespace):
            return ToolUse.NAMED, (_meant(name, namespace, known),)
        case NamedMcpTool(server_label=label, name=str(name)):
            return ToolUse.NAMED, (label + IN_NAMESPACE + named_for_models(name),)
        case NamedMcpTool(server_label=label):
            return ToolUse.REQUIRED, _of_server(label, known)
        case AllowedToolsChoice(mode=mode, tools=tools):
            return ToolUse(mode), _allowed(tools, known)
        case "none":
            return None, None
        case "required":
            return ToolUse.REQUIRED, None
        case _:
            return ToolUse.AUTO, None


def _meant(name: str, namespace: object, known: Sequence[str]) -> str:
    """A tool of a namespace may be named without it, if no other tool has the name."""
    if isinstance(namespace, str):
        return namespace + IN_NAMESPACE + name
    found = [each for each in known if each.rpartition(IN_NAMESPACE)[2] == name]
    return found[0] if len(found) == 1 else name


def _allowed(tools: Sequence[Mapping[str, JsonValue]], known: Sequence[str]) -> tuple[str, ...]:
    """Unsupported tools are left out. A namespace stands for all of its tools."""
    named: list[str] = []
    for tool in tools:
        name = tool.get("name")
        if tool.get("type") == "namespace":
            named += _below(name, known)
        elif tool.get("type") == "mcp":
            label = tool.get("server_label")
            named += (
                [f"{label}{IN_NAMESPACE}{named_for_models(name)}"]
                if isinstance(name, str)
                else _below(label, known)
            )
        elif tool.get("type") in ("function", "custom") and isinstance(name, str):
            named.append(_meant(name, tool.get("namespace"), known))
    if not named:
        raise wrong("'tool_choice.tools' names no function.", "tool_choice.tools")
    return tuple(named)


def _below(stem: object, known: Sequence[str]) -> list[str]:
    return [each for each in known if each.startswith(f"{stem}{IN_NAMESPACE}")]


def _of_server(label: str, known: Sequence[str]) -> tuple[str, ...]:
    found = _below(label, known)
    if not found:
        raise wrong(f"There are no tools of an MCP server '{label}'.", "tool_choice.server_label")
    return tuple(found)


def _asked(tool: FunctionTool | TextTool, path: str, stem: str) -> FunctionParam:
    name = stem + tool.name
    if isinstance(tool, TextTool):
        grammar = tool.format if isinstance(tool.format, GrammarFormat) else None
        return custom_tool(name, tool.description, grammar, path, f"{path}.format")
    at = f"{path}.parameters"
    return FunctionParam(name, path, at, tool.description, tool.parameters, is_strict=bool(tool.strict))
