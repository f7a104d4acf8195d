from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.generation import renderer
from openai_cpu_server.api.generation.call import PartsReader, ResolvedRequest, ToolCallStyle
from openai_cpu_server.api.generation.completion import ChoiceStream, ChunkStream, Completion, completion
from openai_cpu_server.api.generation.logprobs import ChatLogprobs, ContentScores, chat_logprobs
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import wrong
from openai_cpu_server.models.served import PieceTexts
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


def called_functions(parts: Sequence[Part]) -> list[CalledFunction | CalledCustom]:
    """Return the calls in order. The last may be cut."""
    calls: list[CalledFunction | CalledCustom] = []
    for part in parts:
        if isinstance(part, CallBegin):
            calls.append(CalledCustom(part.name, "") if part.takes_text else CalledFunction(part.name, ""))
        elif isinstance(part, (CallArguments, CallText)):
            last = calls.pop()
            text = last.input if isinstance(last, CalledCustom) else last.arguments
            calls.append(type(last)(last.name, text + part.text))
    return calls


def _reason(finish: Finish, reader: PartsReader, style: ToolCallStyle | None) -> str:
    reason = renderer.finish_reason(finish)
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
    """Null with only tool calls or reasoning."""
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
    ended_by: renderer.EndedBy = UNSET


class ChatCompletion(Completion[ChatChoice], frozen=True, kw_only=True):
    object: str = "chat.completion"


class ChatRenderer:
    def __init__(self, new_id: renderer.NewId = renderer.new_tool_call_id) -> None:
        self._new_id = new_id

    def whole(self, gathered: renderer.GatheredCall) -> bytes:
        choices = [
            self._choice(gathered.call, gathered.pieces, index, answer)
            for index, (_, answer) in enumerate(gathered.shown)
        ]
        return completion(ChatCompletion, gathered, choices)

    def stream(self, call: ResolvedRequest, pieces: PieceTexts) -> ChunkStream:
        shown_pieces = None if call.shown_logprobs is None else pieces
        choices: dict[str, ChoiceStream] = {}
        for index, request in enumerate(call.requests):
            if call.tool_calls is None and call.thinking is None:
                choices[request.id] = _TextChoice(index, shown_pieces).choices
            else:
                choices[request.id] = _PartsChoice(index, shown_pieces, call, self._new_id).choices
        return ChunkStream(call, "chat.completion.chunk", choices, empty=_EMPTY)

    def _choice(
        self, call: ResolvedRequest, pieces: PieceTexts, index: int, answer: renderer.GatheredAnswer
    ) -> ChatChoice:
        logprobs = None
        if call.shown_logprobs is not None:
            logprobs = chat_logprobs(answer.logprobs[answer.answer_start :], pieces)
        reader = call.reader()
        parts = answer.parts(reader)
        reason = _reason(answer.ended, reader, call.tool_calls)
        message = self._message(parts, call.tool_calls)
        return ChatChoice(index, message, logprobs, reason, renderer.ended_by(answer.ended))

    def _message(self, parts: Sequence[Part], style: ToolCallStyle | None) -> AssistantMessage:
        content, thoughts = renderer.content_of(parts), renderer.reasoning_of(parts)
        functions = called_functions(parts)
        message = AssistantMessage(
            content=content or None if thoughts or functions else content,
            reasoning_content=thoughts or UNSET,
            reasoning=thoughts or UNSET,
        )
        if not functions:
            return message
        if style is not None and style.is_legacy:
            return msgspec.structs.replace(message, function_call=functions[0])
        calls = [
            ToolCall(id=self._new_id(), type="custom", custom=function)
            if isinstance(function, CalledCustom)
            else ToolCall(id=self._new_id(), function=function)
            for function in functions
        ]
        return msgspec.structs.replace(message, tool_calls=calls)


class _TextChoice:
    def __init__(self, index: int, pieces: PieceTexts | None) -> None:
        """`pieces`: None without log-probabilities."""
        self._index = index
        self._pieces = pieces
        self._is_open = False

    def choices(self, event: TokenEvent) -> list[bytes]:
        parts = []
        if not self._is_open:
            self._is_open = True
            parts.append(self._delta(b'{"role":"assistant","content":""}'))
        if event.text or event.logprobs:
            content = b'{"content":' + renderer.json_text(event.text) + b"}"
            parts.append(self._delta(content, self._logprobs(event.logprobs)))
        if event.finish is not None:
            parts.append(self._last(event.finish, renderer.finish_reason(event.finish)))
        return parts

    def _last(self, finish: Finish, reason: str, logprobs: bytes = _NO_LOGPROBS) -> bytes:
        quoted = b'"%b"' % reason.encode()
        if finish.is_loop:
            quoted += b',"ended_by":"%b"' % renderer.REPETITION.encode()
        return self._delta(b"{}", logprobs, quoted)

    def _delta(self, delta: bytes, logprobs: bytes = _NO_LOGPROBS, reason: bytes = b"null") -> bytes:
        head = b'{"index":%d,"delta":' % self._index
        return head + delta + b',"logprobs":' + logprobs + b',"finish_reason":' + reason + b"}"

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> bytes:
        if self._pieces is None:
            return _NO_LOGPROBS
        return msgspec.json.encode(chat_logprobs(entries, self._pieces))


class _PartsChoice(_TextChoice):
    """Reasoning, content and calls. Text that may begin another part is held back with its scores."""

    def __init__(
        self, index: int, pieces: PieceTexts | None, call: ResolvedRequest, new_id: renderer.NewId
    ) -> None:
        super().__init__(index, pieces)
        self._style = call.tool_calls
        self._reader = call.reader()
        self._new_id = new_id
        self._num_calls = 0
        self._content_scores = ContentScores()

    def choices(self, event: TokenEvent) -> list[bytes]:
        self._content_scores.add(event)
        parts, choices = self._reader.read(event), []
        if not self._is_open and (parts or event.finish is not None):
            self._is_open = True
            # Null content, not an empty one, before a tool call or reasoning.
            content = b"null" if parts and isinstance(parts[0], (CallBegin, ThinkingText)) else b'""'
            choices.append(self._delta(b'{"role":"assistant","content":' + content + b"}"))
        choices += [self._shown(part) for part in parts]
        if event.finish is not None:
            reason = _reason(event.finish, self._reader, self._style)
            choices.append(self._last(event.finish, reason, self._released_logprobs()))
        return choices

    def _shown(self, part: Part) -> bytes:
        if isinstance(part, ThinkingText):
            thoughts = renderer.json_text(part.text)
            return self._delta(b'{"reasoning_content":' + thoughts + b',"reasoning":' + thoughts + b"}")
        if isinstance(part, (CallBegin, CallArguments, CallText)):
            return self._delta(self._call(part), self._released_logprobs())
        return self._delta(b'{"content":' + renderer.json_text(part.text) + b"}", self._released_logprobs())

    def _call(self, part: CallBegin | CallArguments | CallText) -> bytes:
        is_custom = part.takes_text if isinstance(part, CallBegin) else isinstance(part, CallText)
        kind, field = (b"custom", b"input") if is_custom else (b"function", b"arguments")
        if isinstance(part, CallBegin):
            function = b'{"name":%b,"%b":""}' % (renderer.json_text(part.name), field)
            head = b'{"tool_calls":[{"index":%d,"id":"%s","type":"%b","%b":'
            head %= (self._num_calls, self._new_id().encode(), kind, kind)
            self._num_calls += 1
        else:
            function = b'{"%b":%b}' % (field, renderer.json_text(part.text))
            head = b'{"tool_calls":[{"index":%d,"%b":' % (self._num_calls - 1, kind)
        is_legacy = self._style is not None and self._style.is_legacy
        return (b'{"function_call":' + function + b"}") if is_legacy else head + function + b"}]}"

    def _released_logprobs(self) -> bytes:
        entries = self._content_scores.take()
        return self._logprobs(entries) if entries else _NO_LOGPROBS
