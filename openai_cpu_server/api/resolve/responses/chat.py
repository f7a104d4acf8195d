"""A response's body becomes the body of a chat, with what is known of its messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from pydantic import JsonValue

from openai_cpu_server.api.resolve.responses.conversation import Told
from openai_cpu_server.api.schemas import responses as schema
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.api.schemas.structured import JsonObject, JsonSchemaFormat, ResponseFormat
from openai_cpu_server.api.schemas.tools import Function, Tool
from openai_cpu_server.errors import InvalidRequest, PromptTooLong, ServerError, TemplateFailed

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
"""What OpenAI's API knows. All but the first are about tools and media that there are not here, or, like the
thoughts, shown anyway."""
_TIERS: Mapping[str, Literal["priority", "flex"]] = {
    "fast": "priority",
    "priority": "priority",
    "flex": "flex",
}
_SAME = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "user",
    "safety_identifier",
    "metadata",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "ignore_eos",
    "lora",
    "priority",
    "cache",
    "cache_salt",
    "timeout",
    "grammar",
    "regex",
    "choice",
    "enable_thinking",
    "thinking_budget",
    "chat_template_kwargs",
)
"""Fields that mean the same in both bodies."""
_RENAMED = (
    (re.compile(r"\bresponse_format\.json_schema\b"), "text.format"),
    (re.compile(r"\bresponse_format\b"), "text.format"),
    (re.compile(r"\b(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"\bmax_(?:completion_)?tokens\b"), "max_output_tokens"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
)
_MESSAGE = re.compile(r"\bmessages\[(\d+)\][\w.\[\]]*")
_TOOL = re.compile(r"\btools\[(\d+)\]")


class Turn(msgspec.Struct, frozen=True):
    """One response's body and all that it goes on from."""

    body: schema.ResponsesBody
    told: tuple[Told, ...]
    """Instructions, earlier turns and this one."""

    @property
    def functions(self) -> list[tuple[int, schema.FunctionTool]]:
        """The tools that there are here, with their places in the body."""
        tools = enumerate(self.body.tools or ())
        return [(index, tool) for index, tool in tools if isinstance(tool, schema.FunctionTool)]

    @property
    def left_out(self) -> list[str]:
        """The tools that there are not, by their paths."""
        return [
            f"tools[{index}]"
            for index, tool in enumerate(self.body.tools or ())
            if not isinstance(tool, schema.FunctionTool)
        ]


def check_supported(body: schema.ResponsesBody) -> None:
    """Raises InvalidRequest for what there is not."""
    for index, wanted in enumerate(body.include or ()):
        if wanted not in _INCLUDABLE:
            known = ", ".join(f"'{name}'" for name in sorted(_INCLUDABLE))
            message = f"Invalid value for 'include[{index}]': expected one of {known}."
            raise InvalidRequest(message, param=f"include[{index}]", code="invalid_value")
    if body.stream_options is not None and not body.stream:
        message = "'stream_options' is only allowed together with 'stream'."
        raise InvalidRequest(message, param="stream_options", code="invalid_value")


def chat_body(turn: Turn, told: Sequence[Told]) -> ChatBody:
    """`told`: those of its messages that the model is to see. Raises InvalidRequest."""
    body = turn.body
    if not told:
        message = "Missing required parameter: 'input'."
        raise InvalidRequest(message, param="input", code="missing_required_parameter")
    tools = [_tool(tool) for _, tool in turn.functions]
    has_scores = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    same = {name: getattr(body, name) for name in _SAME if getattr(body, name) is not None}
    return ChatBody.model_validate(
        {
            **same,
            "messages": [one.message for one in told],
            "max_completion_tokens": body.max_output_tokens,
            "logprobs": has_scores or None,
            "top_logprobs": body.top_logprobs if has_scores else None,
            "tools": tools or None,
            "tool_choice": _choice(body, has_tools=bool(tools)),
            "parallel_tool_calls": body.parallel_tool_calls if tools else None,
            "response_format": _format(body.text),
            "reasoning_effort": _effort(body.reasoning),
            "service_tier": _TIERS.get(body.service_tier or ""),
        }
    )


def _effort(given: schema.ReasoningOptions | None) -> str | None:
    effort = given.effort if given is not None else None
    return "xhigh" if effort == "max" else effort


def renamed(error: ServerError, turn: Turn, told: Sequence[Told]) -> ServerError:
    """The same failure in the names of this API's fields."""
    match error:
        case InvalidRequest():
            param = None if error.param is None else _renamed(error.param, turn, told)
            return InvalidRequest(_renamed(str(error), turn, told), param=param, code=error.code)
        case TemplateFailed():
            return InvalidRequest(str(error), param="input", code="chat_template_failed")
        case _:
            return error


def is_too_long(error: ServerError) -> bool:
    """Whether fewer items could help."""
    is_servers = isinstance(error, InvalidRequest) and error.code == "context_length_exceeded"
    return isinstance(error, PromptTooLong) or is_servers


def _renamed(text: str, turn: Turn, told: Sequence[Told]) -> str:
    for pattern, name in _RENAMED:
        text = pattern.sub(name, text)
    places = [index for index, _ in turn.functions]
    text = _TOOL.sub(lambda found: f"tools[{places[int(found[1])]}]", text)
    text = _MESSAGE.sub(lambda found: told[int(found[1])].param, text)
    return re.sub(r"\bmessages\b(?=$|')", "input", text)


def _tool(tool: schema.FunctionTool) -> Tool:
    function = Function(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _choice(body: schema.ResponsesBody, *, has_tools: bool) -> str | JsonObject | None:
    """As a chat's body writes it. Without functions only a demand for one is wrong."""
    match body.tool_choice:
        case schema.NamedFunction(name=name):
            return _named(name)
        case schema.AllowedTools(mode=mode, tools=tools):
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": _allowed(tools)}}
        case "none" | "auto" | "required" as mode:
            return mode if has_tools or mode == "required" else None
        case _:
            return None


def _allowed(tools: Sequence[Mapping[str, JsonValue]]) -> list[JsonValue]:
    """Tools that there are not are left out, as in the list of all."""
    given = [tool.get("name") for tool in tools if tool.get("type") == "function"]
    named: list[JsonValue] = [_named(name) for name in given if isinstance(name, str)]
    if not named:
        message = "'tool_choice.tools' names no function."
        raise InvalidRequest(message, param="tool_choice.tools", code="invalid_value")
    return named


def _named(name: str) -> JsonObject:
    return {"type": "function", "function": {"name": name}}


def _format(text: schema.TextOptions | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    given = text.format
    if given.type != "json_schema":
        return ResponseFormat(type=given.type)
    for name, value in (("name", given.name), ("schema", given.json_schema)):
        if value is None:
            param = f"text.format.{name}"
            message = f"Missing required parameter: '{param}'."
            raise InvalidRequest(message, param=param, code="missing_required_parameter")
    inner = {
        "name": given.name,
        "description": given.description,
        "strict": given.strict,
        "schema": given.json_schema,
    }
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat.model_validate(inner))
