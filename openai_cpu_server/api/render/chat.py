"""`chat.completion`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.calls.call import Call, ToolCallStyle
from openai_cpu_server.api.render.answers import Answer, shown
from openai_cpu_server.api.render.chat_logprobs import ChatLogprobs, chat_logprobs
from openai_cpu_server.api.render.chat_stream import chat_stream
from openai_cpu_server.api.render.common import (
    ChunkStream,
    Metadata,
    Tier,
    finish_reason,
    metadata,
    rounded,
    service_tier,
)
from openai_cpu_server.api.render.renderer import Usage
from openai_cpu_server.api.render.tool_calls import (
    CalledFunction,
    NewId,
    ToolCall,
    called_functions,
    content_of,
    new_tool_call_id,
    reason_with_tool_calls,
)
from openai_cpu_server.contract.engine import Timings
from openai_cpu_server.models.pieces import Pieces


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None
    """None: the message consists of tool calls."""
    refusal: None = None
    tool_calls: Union[list[ToolCall], UnsetType] = UNSET
    function_call: Union[CalledFunction, UnsetType] = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: dict[str, float]
    service_tier: Tier = UNSET
    system_fingerprint: str
    metadata: Metadata = UNSET


class ChatRenderer:
    """Makes the answers of chat calls."""

    def __init__(self, new_id: NewId = new_tool_call_id) -> None:
        self._new_id = new_id

    def whole(
        self, call: Call, pieces: Pieces, answers: Mapping[str, Answer], usage: Usage, timings: Timings
    ) -> bytes:
        ranked = enumerate(shown(call, answers))
        completion = ChatCompletion(
            id=call.id,
            created=call.created,
            model=call.model,
            choices=[self._choice(call, pieces, index, answer) for index, (_, answer) in ranked],
            usage=usage,
            timings=rounded(timings),
            service_tier=service_tier(call),
            system_fingerprint=call.fingerprint,
            metadata=metadata(call),
        )
        return msgspec.json.encode(completion)

    def stream(self, call: Call, pieces: Pieces) -> ChunkStream:
        return chat_stream(call, pieces, self._new_id)

    def _choice(self, call: Call, pieces: Pieces, index: int, answer: Answer) -> ChatChoice:
        assert answer.finish is not None, "an answer is rendered after its end"
        logprobs = None
        if call.shown_logprobs is not None:
            logprobs = chat_logprobs(answer.logprobs, pieces)
        if call.tool_calls is None:
            message, reason = AssistantMessage(content=answer.text), finish_reason(answer.finish)
        else:
            message, reason = self._with_tool_calls(call.tool_calls, answer)
        return ChatChoice(index, message, logprobs, reason)

    def _with_tool_calls(self, style: ToolCallStyle, answer: Answer) -> tuple[AssistantMessage, str]:
        assert answer.finish is not None
        reader = style.reader()
        parts = [*reader.feed(answer.text), *reader.finish()]
        content, functions = content_of(parts), called_functions(parts)
        reason = reason_with_tool_calls(answer.finish, reader, style)
        if not functions:
            return AssistantMessage(content=content), reason
        if style.is_legacy:
            return AssistantMessage(content=content or None, function_call=functions[0]), reason
        calls = [ToolCall(id=self._new_id(), function=function) for function in functions]
        return AssistantMessage(content=content or None, tool_calls=calls), reason
