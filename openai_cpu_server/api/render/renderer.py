"""How a family of routes tells its answers, whatever these travel in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from openai_cpu_server.api.calls.call import Call
from openai_cpu_server.api.errors import ErrorObject
from openai_cpu_server.api.render.answers import Answer
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import ModelLoading, Place, TokenEvent
from openai_cpu_server.models.pieces import Pieces


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails = CompletionDetails()

    @classmethod
    def of(cls, figures: Figures) -> Usage:
        return cls(
            prompt_tokens=figures.prompt_tokens,
            completion_tokens=figures.output_tokens,
            total_tokens=figures.total_tokens,
            prompt_tokens_details=PromptDetails(figures.cached_tokens),
            completion_tokens_details=CompletionDetails(figures.thought_tokens),
        )


class Chunk(NamedTuple):
    """A piece of a streamed answer. An event stream and a WebSocket frame it, each in its way."""

    json: bytes
    """One object, without line ends."""
    event: str | None = None
    """The event's name, in APIs whose events have names."""


class Renderer(Protocol):
    """Tells one answer as it comes. All methods return what is to be sent next, often nothing."""

    @property
    def last_words(self) -> bytes | None:
        """What an event stream says when all went well (`[DONE]`); None: nothing."""
        ...

    def begin(self) -> Sequence[Chunk]:
        """The call was submitted."""
        ...

    def waits(self, news: Place | ModelLoading) -> Sequence[Chunk]:
        """The call has a place in the queue, or waits for its model. Nothing: a comment says so instead."""
        ...

    def silence(self) -> Sequence[Chunk]:
        """Nothing was said for a while. Nothing: a comment shows that the server lives."""
        ...

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        """Raises GenerationFailed for an end that is nobody's result."""
        ...

    def end(self, figures: Figures) -> Sequence[Chunk]:
        """All sequences have ended well."""
        ...

    def error(self, error: ErrorObject) -> Sequence[Chunk]:
        """The call has failed; nothing follows."""
        ...


class AnswerRenderer(Protocol):
    """Makes the answers of one family, from `Call`s that it has resolved."""

    def whole(self, call: Call, pieces: Pieces, answers: Mapping[str, Answer], figures: Figures) -> bytes:
        """The body of a response that is not streamed. It runs in any thread."""
        ...

    def stream(self, call: Call, pieces: Pieces) -> Renderer: ...
