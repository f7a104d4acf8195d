"""One response as it is made: events for those who listen, and the object at the end."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence

import msgspec

from openai_cpu_server.api.calls.call import Call
from openai_cpu_server.api.errors import ErrorObject
from openai_cpu_server.api.render.chat_logprobs import ContentScores, TokenEntry, chat_logprobs
from openai_cpu_server.api.render.common import NewId, finish_reason, new_tool_call_id
from openai_cpu_server.api.render.renderer import Chunk
from openai_cpu_server.api.render.responses.items import new_item_id
from openai_cpu_server.api.render.responses.objects import (
    ResponseObject,
    begun,
    cancelled,
    ended,
    failed,
)
from openai_cpu_server.api.render.responses.writing import EventNumbers, ItemWriting, NewItemId
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import FinishReason, ModelLoading, Place, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.models.pieces import Pieces
from openai_cpu_server.prompt.tool_formats import Content, Part, Reasoning


class Stage(enum.Enum):
    """What a stream has said last of how far it is; it goes on, and never back."""

    CREATED = "created"
    QUEUED = "queued"
    IN_PROGRESS = "in progress"
    SPEAKING = "speaking"


class ResponseStream:
    """A `Renderer`, for streams and for answers that are only wanted whole."""

    last_words = None

    def __init__(
        self,
        call: Call,
        pieces: Pieces,
        response: ResponseObject,
        *,
        now: Callable[[], float] = time.time,
        new_call_id: NewId = new_tool_call_id,
        new_item_id: NewItemId = new_item_id,
    ) -> None:
        """`response`: as it is before anything has come."""
        self.response = response
        """As it is now; complete when the call has ended."""
        self._call = call
        self._pieces = pieces
        self._reader = call.reader()
        self._numbers = EventNumbers()
        self._writing = ItemWriting(self._numbers, new_call_id, new_item_id)
        self._now = now
        self._content_scores = ContentScores()
        self._held_scores: list[TokenLogprob] = []
        self._tokens: list[int] = []
        self._has_reasoned = False
        self._is_whole = False
        self._stage = Stage.CREATED

    @property
    def written(self) -> tuple[int, ...]:
        """The tokens of the output, for the next turn; none if it has reasoned, for the template decides
        whether that is shown again."""
        return () if self._has_reasoned else tuple(self._tokens)

    @property
    def has_ended(self) -> bool:
        """It ended well, and says so next."""
        return ResponseStatus(self.response.status).has_ended

    @property
    def is_silent(self) -> bool:
        """Nothing of its output was said."""
        return self._stage is not Stage.SPEAKING

    def begin(self) -> Sequence[Chunk]:
        """Whether it waits is not known yet, but of a response in the background."""
        created = self._about("response.created")
        if self.response.status != ResponseStatus.QUEUED.value:
            return [created]
        self._stage = Stage.QUEUED
        return [created, self._about("response.queued")]

    def waits(self, news: Place | ModelLoading) -> Sequence[Chunk]:
        """It is queued once. Who listens has a sign of life after that; nobody listens in the background."""
        if self._stage is not Stage.CREATED:
            return () if self.response.background else self.lives()
        self._stage = Stage.QUEUED
        self.response = begun(self.response, ResponseStatus.QUEUED)
        return [self._about("response.queued")]

    def lives(self) -> Sequence[Chunk]:
        """For clients that give up a stream on which nothing comes: it waits or reads its prompt."""
        if self._stage is Stage.SPEAKING:
            return ()
        self._stage = Stage.IN_PROGRESS
        self.response = begun(self.response, ResponseStatus.IN_PROGRESS)
        return [self._about("response.in_progress")]

    def silence(self) -> Sequence[Chunk]:
        """Its signs of life stand among its events, for they are numbered."""
        return ()

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        chunks = [*self._started()]
        self._tokens += event.tokens
        if self._call.shown_logprobs is not None:
            self._held_scores += self._content_scores.known(event)
        if event.finish is not None:
            finish_reason(event.finish)  # raises for what is nobody's result
            self._is_whole = event.finish.reason is FinishReason.STOP
        for part in self._reader.read(event):
            chunks += self._part(part)
        return chunks

    def end(self, figures: Figures) -> Sequence[Chunk]:
        chunks = self._writing.end(is_whole=self._is_whole)
        items, now_s = self._writing.items(is_whole=self._is_whole), int(self._now())
        self.response = ended(self.response, items, figures, is_whole=self._is_whole, now_s=now_s)
        return [*chunks, self._about(f"response.{self.response.status}")]

    def warmed(self, figures: Figures) -> Sequence[Chunk]:
        """All that is told of a response whose prompt was read, and nothing more."""
        chunks = [*self.begin(), *self._started()]
        self.response = ended(self.response, (), figures, is_whole=True, now_s=int(self._now()))
        return [*chunks, self._about("response.completed")]

    def failed(self, error: ErrorObject) -> ResponseObject:
        """It as it is to be seen if it ends with this."""
        return failed(self.response, self._writing.items(), error)

    def error(self, error: ErrorObject) -> Sequence[Chunk]:
        self.response = self.failed(error)
        body = error.error
        told = {"code": body.code or body.type, "message": body.message, "param": body.param}
        return [self._numbers.event("error", told), self._about("response.failed")]

    def cancel(self) -> Sequence[Chunk]:
        """Somebody has cancelled it. OpenAI has no event for that; this one says that nothing follows."""
        self.response = cancelled(self.response, self._writing.items())
        return [self._about("response.failed")]

    def _started(self) -> Sequence[Chunk]:
        chunks = () if self._stage is Stage.IN_PROGRESS else self.lives()
        self._stage = Stage.SPEAKING
        return chunks

    def _part(self, part: Part) -> list[Chunk]:
        self._has_reasoned |= isinstance(part, Reasoning)
        held, self._held_scores = self._held_scores, []
        return self._writing.write(part, self._scores(held) if isinstance(part, Content) else ())

    def _scores(self, held: Sequence[TokenLogprob]) -> Sequence[TokenEntry]:
        return chat_logprobs(held, self._pieces).content if held else ()

    def _about(self, kind: str) -> Chunk:
        return self._numbers.event(kind, {"response": self.response})


def encoded(response: ResponseObject) -> bytes:
    return msgspec.json.encode(response)
