"""Writes OpenAI's messages as chat templates expect them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from openai_cpu_server.errors import InvalidRequest

Message = Mapping[str, object]


def template_messages(messages: Sequence[Message], *, as_parts: bool = False) -> list[dict[str, object]]:
    """The messages as templates expect them.

    `developer` becomes `system`. The parts of a content become one text (with `as_parts`, a text becomes one
    part). Arguments of tool calls become objects. Fields that are None are left out.

    Raises InvalidRequest for content that is no text.
    """
    return [_message(message, f"messages[{index}]", as_parts) for index, message in enumerate(messages)]


def content_text(content: object, param: str = "messages") -> str:
    """The text of a content. Line breaks join parts, as in llama-server and vLLM. Raises InvalidRequest."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(_part_text(part, f"{param}[{index}]") for index, part in enumerate(content))
    raise _no_text(param)


def _message(message: Message, param: str, as_parts: bool) -> dict[str, object]:
    fields = {name: value for name, value in message.items() if value is not None}
    if fields.get("role") == "developer":
        fields["role"] = "system"
    text = content_text(message.get("content"), f"{param}.content")
    fields["content"] = [{"type": "text", "text": text}] if as_parts else text
    tool_calls = fields.pop("tool_calls", None)
    # Templates ask whether the field is there, not whether it has something in it.
    if isinstance(tool_calls, Sequence) and tool_calls:
        fields["tool_calls"] = [_tool_call(call) for call in tool_calls]
    return fields


def _part_text(part: object, param: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise _no_text(param)
    return text


def _tool_call(call: object) -> object:
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    arguments = arguments_object(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def arguments_object(arguments: object) -> object:
    """The arguments as an object.
    OpenAI writes them as JSON text; text that is no JSON object stays as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _no_text(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value for '{param}': only text is supported.", param=param, code="invalid_value"
    )
