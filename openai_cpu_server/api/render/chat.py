"""`chat.completion` and `chat.completion.chunk`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.call import Call
from openai_cpu_server.api.render.answers import Answer, shown
from openai_cpu_server.api.render.common import (
    ChunkWriter,
    Metadata,
    Tier,
    Usage,
    finish_reason,
    json_text,
    metadata,
    rounded,
    service_tier,
)
from openai_cpu_server.api.render.pieces import Pieces, finite
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.engine.generation import Timings


class TopToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class TokenEntry(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: list[TopToken]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenEntry]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


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


def chat_logprobs(entries: Sequence[TokenLogprob], pieces: Pieces) -> ChatLogprobs:
    return ChatLogprobs([_entry(entry, pieces) for entry in entries])


def _entry(entry: TokenLogprob, pieces: Pieces) -> TokenEntry:
    piece = pieces[entry.token]
    top = [_top(token, logprob, pieces) for token, logprob in entry.top]
    return TokenEntry(piece.text, finite(entry.logprob), piece.bytes, top)


def _top(token: int, logprob: float, pieces: Pieces) -> TopToken:
    piece = pieces[token]
    return TopToken(piece.text, finite(logprob), piece.bytes)


class ChatRenderer:
    """The whole response of a chat call."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

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
        return ChatStream(call, self._pieces)

    def _choice(self, call: Call, index: int, answer: Answer) -> ChatChoice:
        assert answer.finish is not None, "an answer is rendered after its end"
        logprobs = None
        if call.shown_logprobs is not None:
            logprobs = chat_logprobs(answer.logprobs, self._pieces)
        reason = finish_reason(answer.finish)
        return ChatChoice(index, AssistantMessage(content=answer.text), logprobs, reason)


class ChatStream:
    """The chunks of a chat call, event by event: a role, deltas, a reason to end, for every choice."""

    def __init__(self, call: Call, pieces: Pieces) -> None:
        self._writer = ChunkWriter(call, "chat.completion.chunk")
        self._indices = {request.id: index for index, request in enumerate(call.requests)}
        self._unopened = set(self._indices)
        self._pieces = pieces if call.shown_logprobs is not None else None

    def chunks(self, event: TokenEvent) -> bytes:
        """Zero or more server-sent events."""
        begin = b'{"index":%d,"delta":' % self._indices[event.id]
        parts = []
        if event.id in self._unopened:
            self._unopened.remove(event.id)
            parts.append(begin + b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}')
        if event.text or event.logprobs:
            delta = b'{"content":' + json_text(event.text) + b'},"logprobs":' + self._logprobs(event)
            parts.append(begin + delta + b',"finish_reason":null}')
        if event.finish is not None:
            reason = finish_reason(event.finish).encode()
            parts.append(begin + b'{},"logprobs":null,"finish_reason":"' + reason + b'"}')
        return b"".join(map(self._writer.chunk, parts))

    def usage(self, usage: Usage, timings: Timings) -> bytes:
        return self._writer.usage(usage, timings)

    def _logprobs(self, event: TokenEvent) -> bytes:
        if self._pieces is None:
            return b"null"
        return msgspec.json.encode(chat_logprobs(event.logprobs, self._pieces))
