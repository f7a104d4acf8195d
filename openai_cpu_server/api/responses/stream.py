"""One response: parts of the output become events of items, and an object at the end."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence

import msgspec

from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.renderer import (
    Chunk,
    ContentScores,
    NewId,
    Renderer,
    chat_logprobs,
    finish_reason,
    new_tool_call_id,
    progress_field,
)
from openai_cpu_server.api.responses.items import new_item_id
from openai_cpu_server.api.responses.objects import (
    ResponseObject,
    ResponseUsage,
    WrittenSummary,
    cancelled,
    ended,
    failed,
)
from openai_cpu_server.api.responses.toolbox import McpTools
from openai_cpu_server.api.responses.writing import EventNumbers, ItemWriting, NewItemId
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import (
    FinishReason,
    ModelLoading,
    PromptProgress,
    QueuePlace,
    TokenEvent,
)
from openai_cpu_server.http.errors import ErrorObject
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.models.served import ShownPieces
from openai_cpu_server.prompt.tool_formats import Content, Part, ThinkingText


class StreamStage(enum.Enum):
    """Latest stage that the stream has reported. It only advances."""

    CREATED = "created"
    QUEUED = "queued"
    IN_PROGRESS = "in progress"
    SPEAKING = "speaking"


class ResponseStream(Renderer):
    """Builds streams, and complete responses too. Signs of life are numbered events."""

    def __init__(
        self,
        call: ResolvedRequest,
        pieces: ShownPieces,
        response: ResponseObject,
        *,
        now: Callable[[], float] = time.time,
        new_call_id: NewId = new_tool_call_id,
        new_item_id: NewItemId = new_item_id,
        is_compacting: bool = False,
        summary: WrittenSummary | None = None,
        box: McpTools | None = None,
    ) -> None:
        self.response = response
        self._call = call
        self._pieces = pieces
        self._reader = call.reader()
        self._numbers = EventNumbers()
        self.writing = ItemWriting(
            self._numbers,
            new_call_id,
            new_item_id,
            offered=box.offered if box else {},
            is_compacting=is_compacting,
        )
        self._summary = summary
        self._now = now
        self._content_scores = ContentScores()
        self._tokens: list[int] = []
        self._has_reasoned = False
        self._num_rounds = 1
        self.is_whole = False
        """True if the last generation ended by itself."""
        self._stage = StreamStage.CREATED

    @property
    def written(self) -> tuple[int, ...]:
        """Tokens of the output for the next turn, unless it contains thoughts or several rounds."""
        return self.written_in_round if self._num_rounds == 1 else ()

    @property
    def written_in_round(self) -> tuple[int, ...]:
        return () if self._has_reasoned else tuple(self._tokens)

    @property
    def has_ended(self) -> bool:
        return ResponseStatus(self.response.status).has_ended

    @property
    def is_silent(self) -> bool:
        return self._stage is not StreamStage.SPEAKING

    def begin(self) -> Sequence[Chunk]:
        """Only a background response is known to wait."""
        created = self._about("response.created")
        if self.response.status != ResponseStatus.QUEUED.value:
            return [created]
        self._stage = StreamStage.QUEUED
        return [created, self._about("response.queued")]

    def waits(self, news: QueuePlace | ModelLoading) -> Sequence[Chunk]:
        """The stream reports the queue once. Later reports are signs of life, except in the background."""
        if self._stage is not StreamStage.CREATED:
            return () if self.response.background else self.lives()
        self._stage = StreamStage.QUEUED
        return [self._about("response.queued", ResponseStatus.QUEUED)]

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[Chunk]:
        """Add our own field to an event that clients know."""
        is_queued = progress.place is not None and self._stage is not StreamStage.IN_PROGRESS
        self._stage = StreamStage.QUEUED if is_queued else StreamStage.IN_PROGRESS
        status = ResponseStatus.QUEUED if is_queued else ResponseStatus.IN_PROGRESS
        event = self._about(f"response.{status.value}", status)
        return [Chunk(b"%b,%b}" % (event.json[:-1], progress_field(progress, figures)), event.event)]

    def lives(self) -> Sequence[Chunk]:
        """Some clients give up streams that are silent while the response waits or is prefilled."""
        if self._stage is StreamStage.SPEAKING:
            return ()
        self._stage = StreamStage.IN_PROGRESS
        return [self._about("response.in_progress", ResponseStatus.IN_PROGRESS)]

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        chunks = [*self._started()]
        self._tokens += event.tokens
        if self._call.shown_logprobs is not None:
            self._content_scores.hear(event)
        if event.finish is not None:
            finish_reason(event.finish)  # raises for what is nobody's result
            self.is_whole = event.finish.reason is FinishReason.STOP
        for part in self._reader.read(event):
            chunks += self._part(part)
        return chunks

    def go_on(self, call: ResolvedRequest, pieces: ShownPieces) -> None:
        self._call, self._pieces, self._reader = call, pieces, call.reader()
        self._content_scores, self._tokens, self._has_reasoned = ContentScores(), [], False
        self._num_rounds += 1
        self.writing.start_round()

    def end(self, figures: Figures) -> Sequence[Chunk]:
        chunks = self.writing.end(is_whole=self.is_whole)
        items, now_s = self.writing.items(is_whole=self.is_whole), int(self._now())
        usage = ResponseUsage.of(figures)
        if self._summary is not None:
            usage += self._summary.usage
        self.response = ended(self.response, items, usage, is_whole=self.is_whole, now_s=now_s)
        return [*chunks, self._about(f"response.{self.response.status}")]

    def warmed(self, figures: Figures) -> Sequence[Chunk]:
        chunks = [*self.begin(), *self._started()]
        usage = ResponseUsage.of(figures)
        self.response = ended(self.response, (), usage, is_whole=True, now_s=int(self._now()))
        return [*chunks, self._about("response.completed")]

    def failed(self, error: ErrorObject) -> ResponseObject:
        return failed(self.response, self.writing.items(), error)

    def error(self, error: ErrorObject) -> Sequence[Chunk]:
        self.response = self.failed(error)
        body = error.error
        told = {"code": body.code or body.type, "message": body.message, "param": body.param}
        return [self._numbers.event("error", told), self._about("response.failed")]

    def cancel(self) -> Sequence[Chunk]:
        """Return the last event of a cancelled response. OpenAI has no event for this."""
        self.response = cancelled(self.response, self.writing.items())
        return [self._about("response.failed")]

    def _started(self) -> Sequence[Chunk]:
        if self._stage is StreamStage.SPEAKING:
            return ()
        chunks = () if self._stage is StreamStage.IN_PROGRESS else self.lives()
        self._stage = StreamStage.SPEAKING
        return chunks if self._summary is None else [*chunks, *self.writing.give(self._summary.item)]

    def _part(self, part: Part) -> list[Chunk]:
        self._has_reasoned |= isinstance(part, ThinkingText)
        known = self._content_scores.take()
        is_shown = known and isinstance(part, Content)
        return self.writing.write(part, chat_logprobs(known, self._pieces).content if is_shown else ())

    def _about(self, kind: str, status: ResponseStatus | None = None) -> Chunk:
        if status is not None:
            self.response = msgspec.structs.replace(self.response, status=status.value)
        return self._numbers.event(kind, {"response": self.response})


def encoded(response: ResponseObject) -> bytes:
    return msgspec.json.encode(response)
