"""What the roles of a conversation demand. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.api.schemas.chat import Message, ToolCall
from openai_cpu_server.errors import InvalidRequest


def checked_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """The messages as `prompt` takes them: known fields only, deprecated ones by their new names.

    Raises InvalidRequest.
    """
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    return [_known_fields(message) for message in messages]


def _check(message: Message, at: str) -> None:
    says = _has_content(message) or (message.role == "assistant" and reasoning_of(message))
    if not says and not message.tool_calls and not message.function_call:
        raise _missing(f"{at}.content")
    if message.function_call and message.role != "assistant":
        raise _misplaced(f"{at}.function_call", "assistant")
    if message.name is None and message.role == "function":
        raise _missing(f"{at}.name")
    if message.tool_calls and message.role != "assistant":
        raise _misplaced(f"{at}.tool_calls", "assistant")
    if message.tool_call_id is not None and message.role != "tool":
        raise _misplaced(f"{at}.tool_call_id", "tool")
    if message.tool_call_id is None and message.role == "tool":
        raise _missing(f"{at}.tool_call_id")


def reasoning_of(message: Message) -> str | None:
    """Clients send it back under the name that they read, or under all."""
    return message.reasoning_content or message.reasoning or message.thinking


def _has_content(message: Message) -> bool:
    return message.content not in (None, []) or message.refusal is not None


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
        call = ToolCall(
            id=f"function_{message.function_call.name}", type="function", function=message.function_call
        )
        return {"tool_calls": [_tool_call(call)]}
    return {}


def _tool_call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def _misplaced(param: str, role: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' belongs to messages of role '{role}'.", param=param, code="invalid_value"
    )
