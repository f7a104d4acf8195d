from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Union

import msgspec
import pydantic_core
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from openai_cpu_server.api.generation import renderer
from openai_cpu_server.api.generation.call import PartsReader, ResolvedRequest
from openai_cpu_server.api.messages.schema import NO_THREADS
from openai_cpu_server.contract import messages
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.http import errors
from openai_cpu_server.models.served import PieceTexts
from openai_cpu_server.prompt.tool_formats import CallArguments, CallBegin, Content, Part, ThinkingText

MESSAGES = "/v1/messages"
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    errors.CLIENT_GONE: "api_error",
    500: "api_error",
    503: "overloaded_error",
}
"""Other statuses are invalid requests."""


class ThreadErrorDetails(msgspec.Struct, frozen=True):
    error_code: str
    unsupported: tuple[str, ...]


class MessagesErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    message: str
    details: ThreadErrorDetails | None = None
    """Set where Anthropic's SDKs react to it."""


class MessagesError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    error: MessagesErrorBody
    request_id: str | None = None
    """Unset in a stream, whose headers have it."""


def _body(sent: errors.ErrorObject, status: int) -> MessagesErrorBody:
    """Begin a long prompt's error as Anthropic does, because Claude Code then shortens it."""
    error, message = sent.error, sent.error.message
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    elif error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    details = ThreadErrorDetails(NO_THREADS, ("thread",)) if error.code == NO_THREADS else None
    return MessagesErrorBody(_TYPES.get(status, "invalid_request_error"), message, details)


def _response(error: Exception, request_id: str) -> Response:
    status, sent = errors.failure_of(error).status, errors.error_object(error, request_id=request_id)
    body = MessagesError(type="error", error=_body(sent, status), request_id=request_id)
    return errors.json_response(body, status, errors.headers_of(error))


MESSAGES_ERROR_SHAPE = errors.ErrorShape((MESSAGES,), _response, ("x-request-id", "request-id"))
"""Anthropic's SDKs read only `request-id`."""
_UNSIGNED = "unsigned"
"""Placeholder for Anthropic's signature of reasoning, which clients send back unchecked."""
_PING = (renderer.Chunk(b'{"type":"ping"}', "ping"),)


def new_tool_use_id() -> str:
    return "toolu_" + renderer.random_letters()


class MessageText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class MessageThinking(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class MessageToolUse(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw
    """Object, or a cut call's part of it."""


MessageBlock = Union[MessageText, MessageThinking, MessageToolUse]


class MessagesOutputDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int


class MessagesUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    """Excludes cached tokens."""
    cache_creation_input_tokens: int = 0
    """Always 0, because caching is free."""
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: Union[MessagesOutputDetails, UnsetType] = UNSET
    """Unset at a stream's beginning."""

    @classmethod
    def of(cls, figures: Figures) -> MessagesUsage:
        return cls(
            input_tokens=figures.prompt_tokens - figures.cached_tokens,
            cache_read_input_tokens=figures.cached_tokens,
            output_tokens=figures.output_tokens,
            output_tokens_details=MessagesOutputDetails(figures.thought_tokens),
        )


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: str = "assistant"
    model: str
    content: list[MessageBlock]
    stop_reason: str | None
    stop_sequence: str | None
    ended_by: renderer.EndedBy = UNSET
    usage: MessagesUsage


class _Ending(msgspec.Struct, frozen=True):
    stop_reason: str
    stop_sequence: str | None
    ended_by: renderer.EndedBy = UNSET


class MessagesRenderer:
    def __init__(self, new_id: renderer.NewId = new_tool_use_id) -> None:
        self._new_id = new_id

    def whole(self, gathered: renderer.GatheredCall) -> bytes:
        call, answer = gathered.call, gathered.only
        reader = call.reader()
        parts = answer.parts(reader)
        ending = _ending(call, reader, answer.ended)
        message = AnswerMessage(
            id=call.id,
            model=call.model,
            content=list(_blocks(parts, self._new_id)),
            stop_reason=ending.stop_reason,
            stop_sequence=ending.stop_sequence,
            ended_by=ending.ended_by,
            usage=MessagesUsage.of(gathered.figures),
        )
        return msgspec.json.encode(message)

    def stream(self, call: ResolvedRequest, pieces: PieceTexts) -> MessageStream:
        return MessageStream(call, self._new_id)


def _ending(call: ResolvedRequest, reader: PartsReader, finish: messages.Finish) -> _Ending:
    renderer.finish_reason(finish)
    if finish.is_loop:
        return _Ending("max_tokens", None, renderer.ended_by(finish))
    if finish.reason is messages.FinishReason.LENGTH:
        return _Ending("model_context_window_exceeded" if call.context_ends_it else "max_tokens", None)
    if reader.has_calls and not reader.is_cut:
        return _Ending("tool_use", None)
    if finish.stop_string is not None:
        return _Ending("stop_sequence", finish.stop_string)
    return _Ending("end_turn", None)


# -- whole ---------------------------------------------------------------------------------------------


def _blocks(parts: Sequence[Part], new_id: renderer.NewId) -> Iterator[MessageBlock]:
    groups: list[tuple[Part, list[str]]] = []
    for part in parts:
        if not groups or _begins_block(part, groups[-1][0]):
            groups.append((part, []))
        if not isinstance(part, CallBegin):
            groups[-1][1].append(part.text)
    for first, texts in groups:
        text = "".join(texts)
        if isinstance(first, CallBegin):
            yield MessageToolUse(new_id(), first.name, msgspec.Raw(_object(text)))
        elif isinstance(first, ThinkingText):
            yield MessageThinking(text, _UNSIGNED)
        elif text:
            yield MessageText(text)


def _begins_block(part: Part, block: Part) -> bool:
    return not isinstance(part, CallArguments) and (
        isinstance(part, CallBegin) or type(part) is not type(block)
    )


def _object(arguments: str) -> bytes:
    """Return a valid object from cut arguments, whole ones as written."""
    read = partial(pydantic_core.from_json, arguments, allow_inf_nan=False)
    with suppress(ValueError):
        return arguments.encode() if isinstance(read(), dict) else b"{}"
    with suppress(ValueError):
        found = read(allow_partial="trailing-strings")
        return pydantic_core.to_json(found) if isinstance(found, dict) else b"{}"
    return b"{}"


# -- streamed ------------------------------------------------------------------------------------------


class MessageStream(renderer.Renderer):
    def __init__(self, call: ResolvedRequest, new_id: renderer.NewId) -> None:
        self._call = call
        self._reader = call.reader()
        self._new_id = new_id
        self._block: Part | None = None
        self._index = 0
        self._ending: _Ending | None = None

    def begin(self) -> Sequence[renderer.Chunk]:
        """Cached tokens are known only at the end."""
        prompt = self._call.prompt_tokens
        usage = MessagesUsage(input_tokens=prompt, cache_read_input_tokens=0, output_tokens=0)
        message = AnswerMessage(
            id=self._call.id,
            model=self._call.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
        )
        return (_chunk("message_start", b'"message":' + msgspec.json.encode(message)),)

    def waiting(self, news: messages.QueuePlace | messages.ModelLoading) -> Sequence[renderer.Chunk]:
        return _PING

    def keepalive(self) -> Sequence[renderer.Chunk]:
        return _PING

    def prompt(
        self, request_id: str, progress: messages.PromptProgress, figures: Figures
    ) -> Sequence[renderer.Chunk]:
        """Anthropic's clients skip pings."""
        return (_chunk("ping", renderer.progress_field(progress, figures)),)

    def event(self, event: messages.TokenEvent) -> Sequence[renderer.Chunk]:
        chunks = [chunk for part in self._reader.read(event) for chunk in self._part(part)]
        if event.finish is not None:
            self._ending = _ending(self._call, self._reader, event.finish)
            chunks += self._close()
        return chunks

    def end(self, figures: Figures) -> Sequence[renderer.Chunk]:
        assert self._ending is not None, "the last event contains the end"
        ending, numbers = msgspec.json.encode(self._ending), msgspec.json.encode(MessagesUsage.of(figures))
        delta = _chunk("message_delta", b'"delta":%b,"usage":%b' % (ending, numbers))
        return (delta, renderer.Chunk(b'{"type":"message_stop"}', "message_stop"))

    def error(self, error: errors.ErrorObject) -> Sequence[renderer.Chunk]:
        body = _body(error, errors.status_of(error.error))
        return (renderer.Chunk(msgspec.json.encode(MessagesError(type="error", error=body)), "error"),)

    def _part(self, part: Part) -> Iterator[renderer.Chunk]:
        if self._block is None or _begins_block(part, self._block):
            yield from self._close()
            self._block = part
            fields = b'"index":%d,"content_block":%b' % (self._index, self._opening(part))
            yield _chunk("content_block_start", fields)
        if not isinstance(part, CallBegin):
            yield self._delta(_DELTAS[type(part)] % renderer.json_text(part.text))

    def _opening(self, part: Part) -> bytes:
        if isinstance(part, Content):
            return b'{"type":"text","text":""}'
        if isinstance(part, ThinkingText):
            return b'{"type":"thinking","thinking":"","signature":""}'
        assert isinstance(part, CallBegin), "arguments follow the beginning of their call"
        return msgspec.json.encode(MessageToolUse(self._new_id(), part.name, msgspec.Raw(b"{}")))

    def _close(self) -> list[renderer.Chunk]:
        if self._block is None:
            return []
        signed = [self._delta(_SIGNED)] if isinstance(self._block, ThinkingText) else []
        stop = _chunk("content_block_stop", b'"index":%d' % self._index)
        self._block, self._index = None, self._index + 1
        return [*signed, stop]

    def _delta(self, delta: bytes) -> renderer.Chunk:
        return _chunk("content_block_delta", b'"index":%d,"delta":%b' % (self._index, delta))


_DELTAS: Mapping[type[Part], bytes] = {
    Content: b'{"type":"text_delta","text":%b}',
    ThinkingText: b'{"type":"thinking_delta","thinking":%b}',
    CallArguments: b'{"type":"input_json_delta","partial_json":%b}',
}
_SIGNED = b'{"type":"signature_delta","signature":"%b"}' % _UNSIGNED.encode()


def _chunk(kind: str, fields: bytes) -> renderer.Chunk:
    return renderer.Chunk(b'{"type":"%b",%b}' % (kind.encode(), fields), kind)
