"""`chat.completion`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.call import Call, CallStyle
from openai_cpu_server.api.render.answers import Answer, shown
from openai_cpu_server.api.render.calls import (
    CalledFunction,
    NewId,
    ToolCall,
    called_functions,
    content_of,
    new_call_id,
    reason_with_calls,
)
from openai_cpu_server.api.render.chat_logprobs import ChatLogprobs, chat_logprobs
from openai_cpu_server.api.render.chat_stream import ChatStream
from openai_cpu_server.api.render.common import (
    Metadata,
    Tier,
    Usage,
    finish_reason,
    metadata,
    rounded,
    service_tier,
)
from openai_cpu_server.api.render.pieces import Pieces
from openai_cpu_server.contract.engine import Timings


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None
    """None: the message consists of calls."""
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
    """The whole response of a chat call."""

    def __init__(self, pieces: Pieces, new_id: NewId = new_call_id) -> None:
        self._pieces = pieces
        self._new_id = new_id

    def whole(self, call: Call, answers: Mapping[str, Answer], usage: Usage, timings: Timings) -> bytes:
        choices = [
            self._choice(call, index, answer) for index, (_, answer) in enumerate(shown(call, answers))
        ]
        completion = ChatCompletion(
            id=call.id,
            created=call.created,
            model=call.model,
            choices=choices,
            usage=usage,
            timings=rounded(timings),
            service_tier=service_tier(call),
            system_fingerprint=call.fingerprint,
            metadata=metadata(call),
        )
        return msgspec.json.encode(completion)

    def stream(self, call: Call) -> ChatStream:
        return ChatStream(call, self._pieces, self._new_id)

    def _choice(self, call: Call, index: int, answer: Answer) -> ChatChoice:
        assert answer.finish is not None, "an answer is rendered after its end"
        logprobs = None
        if call.shown_logprobs is not None:
            logprobs = chat_logprobs(answer.logprobs, self._pieces)
        if call.calls is None:
            message, reason = AssistantMessage(content=answer.text), finish_reason(answer.finish)
        else:
            message, reason = self._with_calls(call.calls, answer)
        return ChatChoice(index, message, logprobs, reason)

    def _with_calls(self, style: CallStyle, answer: Answer) -> tuple[AssistantMessage, str]:
        assert answer.finish is not None
        reader = style.reader()
        parts = [*reader.feed(answer.text), *reader.finish()]
        content, functions = content_of(parts), called_functions(parts)
        reason = reason_with_calls(answer.finish, reader, style)
        if not functions:
            return AssistantMessage(content=content), reason
        if style.is_legacy:
            return AssistantMessage(content=content or None, function_call=functions[0]), reason
        calls = [ToolCall(id=self._new_id(), function=function) for function in functions]
        return AssistantMessage(content=content or None, tool_calls=calls), reason
