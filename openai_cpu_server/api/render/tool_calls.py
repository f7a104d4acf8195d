"""Tool calls in OpenAI's shapes, whole and as the deltas of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openai_cpu_server.api.calls.call import PartsReader, ToolCallStyle
from openai_cpu_server.api.render.common import NewId, finish_reason, json_text
from openai_cpu_server.contract.messages import Finish, FinishReason
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.tool_formats import (
    CallArguments,
    CallBegin,
    Part,
)


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON text."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "function"
    function: CalledFunction


def called_functions(parts: Sequence[Part]) -> list[CalledFunction]:
    """The functions in their order; the last one's arguments may be cut."""
    found: list[CalledFunction] = []
    for part in parts:
        if isinstance(part, CallBegin):
            found.append(CalledFunction(part.name, ""))
        elif isinstance(part, CallArguments):
            last = found.pop()
            found.append(CalledFunction(last.name, last.arguments + part.text))
    return found


def reason_with_tool_calls(finish: Finish, reader: PartsReader, style: ToolCallStyle) -> str:
    """Raises GenerationFailed; InvalidRequest if a stop string of the client's has cut a call."""
    reason = finish_reason(finish)
    if finish.reason is not FinishReason.STOP or not reader.has_calls:
        return reason
    if reader.is_cut:
        message = "A stop string has cut a function call; choose one that no call contains."
        raise InvalidRequest(message, param="stop", code="invalid_value")
    return style.reason


class ToolCallDeltas:
    """The tool calls of one choice as deltas: a first one with the name, then the arguments as they come."""

    def __init__(self, new_id: NewId, *, is_legacy: bool) -> None:
        self._is_legacy = is_legacy
        self._new_id = new_id
        self._index = -1

    def begin(self, part: CallBegin) -> bytes:
        function = b'{"name":' + json_text(part.name) + b',"arguments":""}'
        if self._is_legacy:
            return b'{"function_call":' + function + b"}"
        self._index += 1
        head = b'{"tool_calls":[{"index":%d,"id":"%s","type":"function","function":'
        return head % (self._index, self._new_id().encode()) + function + b"}]}"

    def more(self, part: CallArguments) -> bytes:
        function = b'{"arguments":' + json_text(part.text) + b"}"
        if self._is_legacy:
            return b'{"function_call":' + function + b"}"
        return b'{"tool_calls":[{"index":%d,"function":' % self._index + function + b"}]}"
