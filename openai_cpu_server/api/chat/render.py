"""Rendering of `chat.completion` and its chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.generation.call import PartsReader, ResolvedRequest, ToolCallStyle
from openai_cpu_server.api.generation.completion import ChoiceStream, ChunkStream, Completion, completion
from openai_cpu_server.api.generation.renderer import (
    ChatLogprobs,
    ContentScores,
    GatheredAnswer,
    NewId,
    chat_logprobs,
    content_of,
    finish_reason,
    json_text,
    new_tool_call_id,
    reasoning_of,
    shown,
)
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import wrong
from openai_cpu_server.models.served import ShownPieces
from openai_cpu_server.prompt.tool_formats import CallArguments, CallBegin, CallText, Part, ThinkingText


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON text."""


class CalledCustom(msgspec.Struct, frozen=True):
    name: str
    input: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "function"
    function: Union[CalledFunction, UnsetType] = UNSET
    custom: Union[CalledCustom, UnsetType] = UNSET

    @classmethod
    def of(cls, call_id: str, called: CalledFunction | CalledCustom) -> ToolCall:
        if isinstance(called, CalledCustom):
            return cls(id=call_id, type="custom", custom=called)
        return cls(id=call_id, function=called)


def called_functions(parts: Sequence[Part]) -> list[CalledFunction | CalledCustom]:
    """Return the calls in order. The last one's arguments or text may be cut."""
    found: list[CalledFunction | CalledCustom] = []
    for part in parts:
        if isinstance(part, CallBegin):
            found.append(CalledCustom(part.name, "") if part.takes_text else CalledFunction(part.name, ""))
        elif isinstance(part, (CallArguments, CallText)):
            last = found.pop()
            said = last.input if isinstance(last, CalledCustom) else last.arguments
            found.append(type(last)(last.name, said + part.text))
    return found


def _reason(finish: Finish, reader: PartsReader, style: ToolCallStyle | None) -> str:
    reason = finish_reason(finish)
    if style is None or finish.reason is not FinishReason.STOP or not reader.has_calls:
        return reason
    if reader.is_cut:
        raise wrong("A stop string has cut a function call; choose one that no call contains.", "stop")
    return style.reason


_NO_LOGPROBS = b"null"
_EMPTY = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":null}'


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None
    """Null if the message has only tool calls or reasoning."""
    reasoning_content: Union[str, UnsetType] = UNSET
    reasoning: Union[str, UnsetType] = UNSET
    """Newer name of `reasoning_content`."""
    refusal: None = None
    tool_calls: Union[list[ToolCall], UnsetType] = UNSET
    function_call: Union[CalledFunction, UnsetType] = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(Completion[ChatChoice], frozen=True, kw_only=True):
    object: str = "chat.completion"


class ChatRenderer:
    def __init__(self, new_id: NewId = new_tool_call_id) -> None:
        self._new_id = new_id

    def whole(
        self,
        call: ResolvedRequest,
        pieces: ShownPieces,
        answers: Mapping[str, GatheredAnswer],
        figures: Figures,
    ) -> bytes:
        ranked = enumerate(shown(call, answers))
        choices = [self._choice(call, pieces, index, answer) for index, (_, answer) in ranked]
        return completion(ChatCompletion, call, choices, figures)

    def stream(self, call: ResolvedRequest, pieces: ShownPieces) -> ChunkStream:
        scores = _no_scores if call.shown_logprobs is None else partial(_scores, pieces)
        choices = {
            request.id: _choice(index, scores, call, self._new_id)
            for index, request in enumerate(call.requests)
        }
        return ChunkStream(call, "chat.completion.chunk", choices, empty=_EMPTY)

    def _choice(
        self, call: ResolvedRequest, pieces: ShownPieces, index: int, answer: GatheredAnswer
    ) -> ChatChoice:
        logprobs = None
        if call.shown_logprobs is not None:
            logprobs = chat_logprobs(answer.logprobs[answer.answer_start :], pieces)
        reader = call.reader()
        parts = answer.parts(reader)
        reason = _reason(answer.ended, reader, call.tool_calls)
        return ChatChoice(index, self._message(parts, call.tool_calls), logprobs, reason)

    def _message(self, parts: Sequence[Part], style: ToolCallStyle | None) -> AssistantMessage:
        content, functions, thoughts = content_of(parts), called_functions(parts), reasoning_of(parts)
        message = AssistantMessage(
            content=content or None if thoughts or functions else content,
            reasoning_content=thoughts or UNSET,
            reasoning=thoughts or UNSET,
        )
        if not functions:
            return message
        if style is not None and style.is_legacy:
            return msgspec.structs.replace(message, function_call=functions[0])
        calls = [ToolCall.of(self._new_id(), function) for function in functions]
        return msgspec.structs.replace(message, tool_calls=calls)


_Scores = Callable[[Sequence[TokenLogprob]], bytes]


def _scores(pieces: ShownPieces, entries: Sequence[TokenLogprob]) -> bytes:
    return msgspec.json.encode(chat_logprobs(entries, pieces))


def _no_scores(entries: Sequence[TokenLogprob]) -> bytes:
    return _NO_LOGPROBS


def _choice(index: int, scores: _Scores, call: ResolvedRequest, new_id: NewId) -> ChoiceStream:
    if call.tool_calls is None and call.thinking is None:
        return _TextChoice(index, scores).choices
    return _PartsChoice(index, scores, call, new_id).choices


def _delta(index: int, delta: bytes, logprobs: bytes = _NO_LOGPROBS, reason: bytes = b"null") -> bytes:
    begin = b'{"index":%d,"delta":' % index
    return begin + delta + b',"logprobs":' + logprobs + b',"finish_reason":' + reason + b"}"


class _TextChoice:
    def __init__(self, index: int, scores: _Scores) -> None:
        self._index = index
        self._scores = scores
        self._is_open = False

    def choices(self, event: TokenEvent) -> list[bytes]:
        parts = []
        if not self._is_open:
            self._is_open = True
            parts.append(_delta(self._index, b'{"role":"assistant","content":""}'))
        if event.text or event.logprobs:
            content = b'{"content":' + json_text(event.text) + b"}"
            parts.append(_delta(self._index, content, self._scores(event.logprobs)))
        if event.finish is not None:
            reason = f'"{finish_reason(event.finish)}"'.encode()
            parts.append(_delta(self._index, b"{}", reason=reason))
        return parts


class _PartsChoice:
    """Choice with reasoning, content and calls. Text that may begin another part is held back with its
    scores."""

    def __init__(self, index: int, scores: _Scores, call: ResolvedRequest, new_id: NewId) -> None:
        self._index = index
        self._scores = scores
        self._style = call.tool_calls
        self._reader = call.reader()
        self._new_id = new_id
        self._num_calls = 0
        self._is_open = False
        self._content_scores = ContentScores()

    def choices(self, event: TokenEvent) -> list[bytes]:
        self._content_scores.hear(event)
        parts = self._reader.read(event)
        shown = [self._opening(parts)] if parts or event.finish is not None else []
        shown += [self._shown(part) for part in parts]
        if event.finish is not None:
            shown.append(self._end(event.finish))
        return [choice for choice in shown if choice]

    def _shown(self, part: Part) -> bytes:
        scores = _NO_LOGPROBS if isinstance(part, ThinkingText) else self._released_scores()
        return _delta(self._index, self._part(part), scores)

    def _opening(self, parts: Sequence[Part]) -> bytes:
        """Begin with null content, not an empty one, before a tool call or reasoning."""
        if self._is_open:
            return b""
        self._is_open = True
        content = b"null" if parts and isinstance(parts[0], (CallBegin, ThinkingText)) else b'""'
        return _delta(self._index, b'{"role":"assistant","content":' + content + b"}")

    def _part(self, part: Part) -> bytes:
        if isinstance(part, (CallBegin, CallArguments, CallText)):
            return self._call(part)
        if isinstance(part, ThinkingText):
            thoughts = json_text(part.text)
            return b'{"reasoning_content":' + thoughts + b',"reasoning":' + thoughts + b"}"
        return b'{"content":' + json_text(part.text) + b"}"

    def _call(self, part: CallBegin | CallArguments | CallText) -> bytes:
        is_legacy = self._style is not None and self._style.is_legacy
        if isinstance(part, CallBegin):
            kind, said = (b"custom", b"input") if part.takes_text else (b"function", b"arguments")
            function = b'{"name":%b,"%b":""}' % (json_text(part.name), said)
            head = b'{"tool_calls":[{"index":%d,"id":"%s","type":"%b","%b":'
            head %= (self._num_calls, self._new_id().encode(), kind, kind)
            self._num_calls += 1
        else:
            kind, said = (b"custom", b"input") if isinstance(part, CallText) else (b"function", b"arguments")
            function = b'{"%b":%b}' % (said, json_text(part.text))
            head = b'{"tool_calls":[{"index":%d,"%b":' % (self._num_calls - 1, kind)
        return (b'{"function_call":' + function + b"}") if is_legacy else head + function + b"}]}"

    def _end(self, finish: Finish) -> bytes:
        reason = _reason(finish, self._reader, self._style)
        return _delta(self._index, b"{}", self._released_scores(), f'"{reason}"'.encode())

    def _released_scores(self) -> bytes:
        known = self._content_scores.take()
        return self._scores(known) if known else _NO_LOGPROBS
