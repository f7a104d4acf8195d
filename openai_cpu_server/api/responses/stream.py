"""One response as it is made: parts of the output become events of items, and an object at the end."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Union

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.asking.call import Call
from openai_cpu_server.api.asking.renderer import (
    Chunk,
    ContentScores,
    NewId,
    Renderer,
    TokenEntry,
    chat_logprobs,
    finish_reason,
    json_text,
    new_tool_call_id,
    one_line,
    progress_field,
)
from openai_cpu_server.api.responses.body import OWN_SUMMARY
from openai_cpu_server.api.responses.objects import (
    IN_NAMESPACE,
    CallItem,
    CompactionItem,
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
    ResponseUsage,
    WrittenSummary,
    cancelled,
    ended,
    failed,
    new_item_id,
)
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
from openai_cpu_server.prompt.tool_formats import (
    CallArguments,
    CallBegin,
    CallText,
    Content,
    Part,
    ThinkingText,
)

NewItemId = Callable[[type], str]
_ADDED, _DONE = "response.output_item.added", "response.output_item.done"
_PART_ADDED, _PART_DONE = "response.content_part.added", "response.content_part.done"


class EventNumbers:
    """Numbers the events of one stream from 0 on, and writes them."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def event(self, kind: str, fields: Mapping[str, object]) -> Chunk:
        named = {"type": kind, "sequence_number": self._take(), **fields}
        return Chunk(one_line(msgspec.json.encode(named)), kind)

    def delta(self, kind: str, place: bytes, text: str, tail: bytes) -> Chunk:
        """The event of which there are many. `place` says where it belongs, `tail` what follows the text."""
        head = b'{"type":"%b","sequence_number":%d,' % (kind.encode(), self._take())
        return Chunk(head + place + b',"delta":' + json_text(text) + tail, kind)

    def _take(self) -> int:
        number = self._next
        self._next += 1
        return number


class ItemWriting:
    """Writes the items in their order; one is open at a time."""

    def __init__(
        self,
        numbers: EventNumbers,
        new_call_id: Callable[[], str],
        new_id: NewItemId = new_item_id,
        *,
        is_compacting: bool = False,
    ):
        """`is_compacting`: the text is a summary, and thoughts are not told."""
        self._is_compacting = is_compacting
        self._numbers = numbers
        self._new_call_id = new_call_id
        self._new_id = new_id
        self._open: ItemWriter | None = None
        self._done: list[OutputItem] = []
        self._num_given = 0

    def write(self, part: Part, scores: Sequence[TokenEntry] = ()) -> list[Chunk]:
        if self._is_compacting:
            text = part.text if isinstance(part, Content) else ""
            return [*self._opened(CompactionItem), *self._more(text, ())]
        match part:
            case Content(text):
                return [*self._opened(MessageItem), *self._more(text, scores)]
            case ThinkingText(text):
                return [*self._opened(ReasoningItem), *self._more(text, ())]
            case CallBegin(name, takes_text):
                kind = CustomCallItem if takes_text else FunctionCallItem
                return self._begun(_CallWriter(kind, self._place(kind), self._new_call_id(), name))
            case CallArguments(text) | CallText(text):
                return self._more(text, ())

    def give(self, item: CompactionItem) -> list[Chunk]:
        """Tells an item that is there before anything is written."""
        place = _ItemPlace(self._numbers, item.id, len(self._done))
        self._done.append(item)
        self._num_given += 1
        return [place.item(_ADDED, item), place.item(_DONE, item)]

    def end(self, *, is_whole: bool) -> list[Chunk]:
        """Ends the last item. A response without any has an empty message."""
        kind = CompactionItem if self._is_compacting else MessageItem
        is_empty = self._open is None and len(self._done) == self._num_given
        chunks = self._opened(kind) if is_empty else []
        return chunks + self._closed("completed" if is_whole else "incomplete")

    def items(self, *, is_whole: bool = False) -> list[OutputItem]:
        """The items as they are now."""
        status = "completed" if is_whole else "incomplete"
        return self._done + ([self._open.item(status)] if self._open is not None else [])

    def _opened(self, kind: type[MessageItem] | type[ReasoningItem] | type[CompactionItem]) -> list[Chunk]:
        writer = _OPENED[kind]
        return [] if isinstance(self._open, writer) else self._begun(writer(self._place(kind)))

    def _begun(self, writer: ItemWriter) -> list[Chunk]:
        before = self._closed("completed")
        self._open = writer
        return before + writer.begin()

    def _more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        assert self._open is not None, "arguments belong to a call"
        return self._open.more(text, scores)

    def _closed(self, status: str) -> list[Chunk]:
        if self._open is None:
            return []
        writer, self._open = self._open, None
        self._done.append(writer.item(status))
        return writer.end(status)

    def _place(self, kind: type) -> _ItemPlace:
        index = len(self._done) + (self._open is not None)
        return _ItemPlace(self._numbers, self._new_id(kind), index)


class _ItemPlace:
    """Where an item stands, which all of its events say."""

    def __init__(self, numbers: EventNumbers, item_id: str, index: int) -> None:
        self.id = item_id
        self._numbers = numbers
        self._index = index
        self._whole = b'"item_id":"%b","output_index":%d' % (item_id.encode(), index)
        self._within = self._whole + b',"content_index":0'

    def item(self, kind: str, item: OutputItem) -> Chunk:
        return self._numbers.event(kind, {"output_index": self._index, "item": item})

    def event(self, kind: str, **fields: object) -> Chunk:
        return self._numbers.event(kind, {"item_id": self.id, "output_index": self._index, **fields})

    def delta(self, kind: str, text: str, tail: bytes = b"}") -> Chunk:
        return self._numbers.delta(kind, self._whole, text, tail)

    def part_delta(self, kind: str, text: str, tail: bytes = b"}") -> Chunk:
        return self._numbers.delta(kind, self._within, text, tail)


class _MessageWriter:
    def __init__(self, place: _ItemPlace) -> None:
        self._place = place
        self._texts: list[str] = []
        self._scores: list[TokenEntry] = []

    def begin(self) -> list[Chunk]:
        item = MessageItem(id=self._place.id, status="in_progress", role="assistant", content=())
        added = self._place.item(_ADDED, item)
        return [added, self._place.event(_PART_ADDED, content_index=0, part=OutputText(""))]

    def more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        self._texts.append(text)
        self._scores += scores
        tail = b',"logprobs":' + msgspec.json.encode(scores) + b"}"
        return [self._place.part_delta("response.output_text.delta", text, tail)]

    def end(self, status: str) -> list[Chunk]:
        part, place = self._part, self._place
        done = place.event(
            "response.output_text.done", content_index=0, text=part.text, logprobs=part.logprobs
        )
        return [
            done,
            place.event(_PART_DONE, content_index=0, part=part),
            place.item(_DONE, self.item(status)),
        ]

    def item(self, status: str) -> OutputItem:
        return MessageItem(id=self._place.id, status=status, role="assistant", content=(self._part,))

    @property
    def _part(self) -> OutputText:
        return OutputText("".join(self._texts), logprobs=tuple(self._scores))


class _ReasoningWriter:
    def __init__(self, place: _ItemPlace) -> None:
        self._place = place
        self._texts: list[str] = []

    def begin(self) -> list[Chunk]:
        item = ReasoningItem(id=self._place.id, status="in_progress")
        added = self._place.item(_ADDED, item)
        return [added, self._place.event(_PART_ADDED, content_index=0, part=ReasoningText(""))]

    def more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        self._texts.append(text)
        return [self._place.part_delta("response.reasoning_text.delta", text)]

    def end(self, status: str) -> list[Chunk]:
        text = "".join(self._texts)
        done = self._place.event("response.reasoning_text.done", content_index=0, text=text)
        closed = self._place.event(_PART_DONE, content_index=0, part=ReasoningText(text))
        return [done, closed, self._place.item(_DONE, self.item(status))]

    def item(self, status: str) -> OutputItem:
        text = ReasoningText("".join(self._texts))
        return ReasoningItem(id=self._place.id, status=status, content=(text,))


class _CallWriter:
    def __init__(self, kind: type[CallItem], place: _ItemPlace, call_id: str, name: str) -> None:
        self._kind = kind
        self._place = place
        self._call_id = call_id
        self._namespace, _, self._name = name.rpartition(IN_NAMESPACE)
        self._texts: list[str] = []

    @property
    def _event(self) -> str:
        """What the names of its events begin with."""
        said = "function_call_arguments" if self._kind is FunctionCallItem else "custom_tool_call_input"
        return f"response.{said}"

    def begin(self) -> list[Chunk]:
        return [self._place.item(_ADDED, self.item("in_progress"))]

    def more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        self._texts.append(text)
        return [self._place.delta(f"{self._event}.delta", text)]

    def end(self, status: str) -> list[Chunk]:
        item = self.item(status)
        if isinstance(item, CustomCallItem):
            done = self._place.event(f"{self._event}.done", input=item.input)
        else:
            done = self._place.event(f"{self._event}.done", name=item.name, arguments=item.arguments)
        return [done, self._place.item(_DONE, item)]

    def item(self, status: str) -> CallItem:
        text, namespace = "".join(self._texts), self._namespace or UNSET
        place, name = {"id": self._place.id, "call_id": self._call_id}, self._name
        if self._kind is CustomCallItem:
            return CustomCallItem(**place, status=status, name=name, namespace=namespace, input=text)
        return FunctionCallItem(**place, status=status, name=name, namespace=namespace, arguments=text)


class _SummaryWriter:
    """It is told whole."""

    def __init__(self, place: _ItemPlace) -> None:
        self._place = place
        self._texts: list[str] = []

    def begin(self) -> list[Chunk]:
        return [self._place.item(_ADDED, self.item("in_progress"))]

    def more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        self._texts.append(text)
        return []

    def end(self, status: str) -> list[Chunk]:
        return [self._place.item(_DONE, self.item(status))]

    def item(self, status: str) -> OutputItem:
        return CompactionItem(id=self._place.id, encrypted_content=OWN_SUMMARY + "".join(self._texts))


ItemWriter = Union[_MessageWriter, _ReasoningWriter, _CallWriter, _SummaryWriter]
"""Writes one item, from its first event to its last."""
_OPENED: dict[type, type[_MessageWriter] | type[_ReasoningWriter] | type[_SummaryWriter]] = {
    MessageItem: _MessageWriter,
    ReasoningItem: _ReasoningWriter,
    CompactionItem: _SummaryWriter,
}


class StreamStage(enum.Enum):
    """What a stream has said last of how far it is; it goes on, and never back."""

    CREATED = "created"
    QUEUED = "queued"
    IN_PROGRESS = "in progress"
    SPEAKING = "speaking"


class ResponseStream(Renderer):
    """For streams, and for answers that are only wanted whole. Signs of life stand among its events, for they
    are numbered."""

    def __init__(
        self,
        call: Call,
        pieces: ShownPieces,
        response: ResponseObject,
        *,
        now: Callable[[], float] = time.time,
        new_call_id: NewId = new_tool_call_id,
        new_item_id: NewItemId = new_item_id,
        is_compacting: bool = False,
        summary: WrittenSummary | None = None,
    ) -> None:
        """`response`: as it is before anything has come. `is_compacting`: it is to be a summary. `summary`:
        the one that was made on the way to it."""
        self.response = response
        """As it is now; complete when the call has ended."""
        self._call = call
        self._pieces = pieces
        self._reader = call.reader()
        self._numbers = EventNumbers()
        self._writing = ItemWriting(self._numbers, new_call_id, new_item_id, is_compacting=is_compacting)
        self._summary = summary
        self._now = now
        self._content_scores = ContentScores()
        self._tokens: list[int] = []
        self._has_reasoned = False
        self._is_whole = False
        self._stage = StreamStage.CREATED

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
        return self._stage is not StreamStage.SPEAKING

    def begin(self) -> Sequence[Chunk]:
        """Whether it waits is not known yet, but of a response in the background."""
        created = self._about("response.created")
        if self.response.status != ResponseStatus.QUEUED.value:
            return [created]
        self._stage = StreamStage.QUEUED
        return [created, self._about("response.queued")]

    def waits(self, news: QueuePlace | ModelLoading) -> Sequence[Chunk]:
        """It is queued once. Who listens has a sign of life after that; nobody listens in the background."""
        if self._stage is not StreamStage.CREATED:
            return () if self.response.background else self.lives()
        self._stage = StreamStage.QUEUED
        return [self._about("response.queued", ResponseStatus.QUEUED)]

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[Chunk]:
        """Beside what clients know: a field of ours in an event that stands there anyway."""
        is_queued = progress.place is not None and self._stage is not StreamStage.IN_PROGRESS
        self._stage = StreamStage.QUEUED if is_queued else StreamStage.IN_PROGRESS
        status = ResponseStatus.QUEUED if is_queued else ResponseStatus.IN_PROGRESS
        event = self._about(f"response.{status.value}", status)
        return [Chunk(b"%b,%b}" % (event.json[:-1], progress_field(progress, figures)), event.event)]

    def lives(self) -> Sequence[Chunk]:
        """For clients that give up a stream on which nothing comes: it waits or reads its prompt."""
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
            self._is_whole = event.finish.reason is FinishReason.STOP
        for part in self._reader.read(event):
            chunks += self._part(part)
        return chunks

    def end(self, figures: Figures) -> Sequence[Chunk]:
        chunks = self._writing.end(is_whole=self._is_whole)
        items, now_s = self._writing.items(is_whole=self._is_whole), int(self._now())
        usage = ResponseUsage.of(figures)
        if self._summary is not None:
            usage += self._summary.usage
        self.response = ended(self.response, items, usage, is_whole=self._is_whole, now_s=now_s)
        return [*chunks, self._about(f"response.{self.response.status}")]

    def warmed(self, figures: Figures) -> Sequence[Chunk]:
        """All that is told of a response whose prompt was read, and nothing more."""
        chunks = [*self.begin(), *self._started()]
        usage = ResponseUsage.of(figures)
        self.response = ended(self.response, (), usage, is_whole=True, now_s=int(self._now()))
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
        if self._stage is StreamStage.SPEAKING:
            return ()
        chunks = () if self._stage is StreamStage.IN_PROGRESS else self.lives()
        self._stage = StreamStage.SPEAKING
        return chunks if self._summary is None else [*chunks, *self._writing.give(self._summary.item)]

    def _part(self, part: Part) -> list[Chunk]:
        self._has_reasoned |= isinstance(part, ThinkingText)
        known = self._content_scores.take()
        is_shown = known and isinstance(part, Content)
        return self._writing.write(part, chat_logprobs(known, self._pieces).content if is_shown else ())

    def _about(self, kind: str, status: ResponseStatus | None = None) -> Chunk:
        """`status`: what it is from now on."""
        if status is not None:
            self.response = msgspec.structs.replace(self.response, status=status.value)
        return self._numbers.event(kind, {"response": self.response})


def encoded(response: ResponseObject) -> bytes:
    return msgspec.json.encode(response)
