from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.logprobs import ContentScores, TokenEntry, chat_logprobs
from openai_cpu_server.api.generation.renderer import (
    Chunk,
    EndedBy,
    NewId,
    Renderer,
    ended_by,
    escaped_line_ends,
    finish_reason,
    json_text,
    new_tool_call_id,
    progress_field,
)
from openai_cpu_server.api.responses import objects
from openai_cpu_server.api.responses.items import (
    IN_NAMESPACE,
    OWN_SUMMARY,
    ApprovalRequestItem,
    CallItem,
    CompactionItem,
    CustomCallItem,
    FunctionCallItem,
    McpCallItem,
    McpListItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    new_item_id,
)
from openai_cpu_server.api.responses.mcp_tools import McpTools, OfferedTool, ToolListing
from openai_cpu_server.contract import messages
from openai_cpu_server.contract.figures import Figures, of_rounds
from openai_cpu_server.contract.mcp import McpAnswer
from openai_cpu_server.http.errors import ErrorObject
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.models.served import PieceTexts
from openai_cpu_server.prompt import tool_formats

NewItemId = Callable[[type], str]
_ADDED, _DONE = "response.output_item.added", "response.output_item.done"
_PART_ADDED, _PART_DONE = "response.content_part.added", "response.content_part.done"


@dataclass
class EventNumbers:
    next: int = 0

    def event(self, kind: str, fields: Mapping[str, object]) -> Chunk:
        body = {"type": kind, "sequence_number": self._take(), **fields}
        return Chunk(escaped_line_ends(msgspec.json.encode(body)), kind)

    def delta(self, kind: str, place: bytes, text: str, tail: bytes) -> Chunk:
        """`place`: fields before the text. `tail`: end of the object after it."""
        head = b'{"type":"%b","sequence_number":%d,' % (kind.encode(), self._take())
        return Chunk(head + place + b',"delta":' + json_text(text) + tail, kind)

    def _take(self) -> int:
        self.next += 1
        return self.next - 1


class _ItemPlace:
    def __init__(self, numbers: EventNumbers, item_id: str, index: int) -> None:
        self.id = item_id
        self._numbers = numbers
        self._index = index
        self._fields = b'"item_id":"%b","output_index":%d' % (item_id.encode(), index)

    def item(self, kind: str, item: OutputItem) -> Chunk:
        return self._numbers.event(kind, {"output_index": self._index, "item": item})

    def event(self, kind: str, **fields: object) -> Chunk:
        return self._numbers.event(kind, {"item_id": self.id, "output_index": self._index, **fields})

    def delta(self, kind: str, text: str) -> Chunk:
        return self._numbers.delta(kind, self._fields, text, b"}")

    def part_delta(self, kind: str, text: str, tail: bytes) -> Chunk:
        return self._numbers.delta(kind, self._fields + b',"content_index":0', text, tail)


@dataclass
class _OpenItem(ABC):
    """Item being written. Without `delta_event` it is sent without deltas."""

    delta_event: ClassVar[str] = ""
    place: _ItemPlace
    texts: list[str] = field(default_factory=list, init=False)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @abstractmethod
    def item(self, status: str) -> OutputItem: ...

    def begin(self) -> list[Chunk]:
        return [self.place.item(_ADDED, self.item("in_progress"))]

    def more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        self.texts.append(text)
        return [self.place.delta(self.delta_event, text)] if self.delta_event else []

    def end(self, status: str) -> list[Chunk]:
        return [self.place.item(_DONE, self.item(status))]


@dataclass
class _OpenMessage(_OpenItem):
    text_event: ClassVar[str] = "response.output_text"
    has_scores: ClassVar[bool] = True
    scores: list[TokenEntry] = field(default_factory=list, init=False)

    def part(self) -> OutputText | ReasoningText:
        return OutputText(self.text, logprobs=tuple(self.scores))

    def item(self, status: str) -> OutputItem:
        part = self.part()
        assert isinstance(part, OutputText)
        return MessageItem(id=self.place.id, status=status, role="assistant", content=(part,))

    def begin(self) -> list[Chunk]:
        item = msgspec.structs.replace(self.item("in_progress"), content=())
        added = self.place.item(_ADDED, item)
        return [added, self.place.event(_PART_ADDED, content_index=0, part=self.part())]

    def more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        self.texts.append(text)
        self.scores += scores
        tail = b',"logprobs":' + msgspec.json.encode(scores) + b"}" if self.has_scores else b"}"
        return [self.place.part_delta(f"{self.text_event}.delta", text, tail)]

    def end(self, status: str) -> list[Chunk]:
        part = self.part()
        fields = {"logprobs": part.logprobs} if isinstance(part, OutputText) else {}
        return [
            self.place.event(f"{self.text_event}.done", content_index=0, text=part.text, **fields),
            self.place.event(_PART_DONE, content_index=0, part=part),
            *super().end(status),
        ]


class _OpenReasoning(_OpenMessage):
    text_event = "response.reasoning_text"
    has_scores = False

    def part(self) -> ReasoningText:
        return ReasoningText(self.text)

    def item(self, status: str) -> OutputItem:
        return ReasoningItem(id=self.place.id, status=status, content=(self.part(),))


class _OpenSummary(_OpenItem):
    def item(self, status: str) -> OutputItem:
        return CompactionItem(id=self.place.id, encrypted_content=OWN_SUMMARY + self.text)


@dataclass
class _OpenFunctionCall(_OpenItem):
    delta_event = "response.function_call_arguments.delta"
    call_id: str
    name: str

    def fields(self, status: str) -> dict[str, Any]:
        namespace, _, name = self.name.rpartition(IN_NAMESPACE)
        names = {"name": name, "namespace": namespace or UNSET}
        return {"id": self.place.id, "status": status, "call_id": self.call_id, **names}

    def item(self, status: str) -> CallItem:
        return FunctionCallItem(arguments=self.text, **self.fields(status))

    def end(self, status: str) -> list[Chunk]:
        item = self.item(status)
        done = self.place.event("response.function_call_arguments.done", name=item.name, arguments=self.text)
        return [done, self.place.item(_DONE, item)]


class _OpenCustomCall(_OpenFunctionCall):
    delta_event = "response.custom_tool_call_input.delta"

    def item(self, status: str) -> CallItem:
        return CustomCallItem(input=self.text, **self.fields(status))

    def end(self, status: str) -> list[Chunk]:
        done = self.place.event("response.custom_tool_call_input.done", input=self.text)
        return [done, self.place.item(_DONE, self.item(status))]


@dataclass
class _OpenMcpCall(_OpenItem):
    """Call by this server, which ends with its result."""

    delta_event = "response.mcp_call_arguments.delta"
    tool: OfferedTool
    approval_id: str | None = None

    def begin(self) -> list[Chunk]:
        return [*super().begin(), self.place.event("response.mcp_call.in_progress")]

    def end(self, status: str) -> list[Chunk]:
        done = self.place.event("response.mcp_call_arguments.done", arguments=self.text)
        return [done] if status == "completed" else [done, *super().end(status)]

    def answered(self, answer: McpAnswer) -> tuple[McpCallItem, list[Chunk]]:
        status = "failed" if answer.is_error else "completed"
        result = {"error": answer.text} if answer.is_error else {"output": answer.text}
        item = msgspec.structs.replace(self.item(status), **result)
        took = {} if answer.duration_ms is None else {"duration_ms": answer.duration_ms}
        event = self.place.event(f"response.mcp_call.{status}", **took)
        return item, [event, self.place.item(_DONE, item)]

    def item(self, status: str) -> McpCallItem:
        return McpCallItem(
            id=self.place.id,
            status=status,
            server_label=self.tool.label,
            name=self.tool.tool.name,
            arguments=self.text,
            approval_request_id=self.approval_id,
        )


@dataclass
class _OpenApproval(_OpenItem):
    tool: OfferedTool

    def begin(self) -> list[Chunk]:
        return []

    def end(self, status: str) -> list[Chunk]:
        return [self.place.item(_ADDED, self.item(status)), *super().end(status)]

    def item(self, status: str) -> OutputItem:
        label, name = self.tool.label, self.tool.tool.name
        return ApprovalRequestItem(id=self.place.id, server_label=label, name=name, arguments=self.text)


class PendingCall(NamedTuple):
    position: int
    call: _OpenMcpCall


_FOR_CLIENTS = (FunctionCallItem, CustomCallItem, ApprovalRequestItem)


@dataclass
class OutputWriter:
    """One item is open at a time."""

    numbers: EventNumbers
    new_call_id: NewId
    new_id: NewItemId
    offered: Mapping[str, OfferedTool]
    is_compacting: bool
    """True drops thoughts."""

    def __post_init__(self) -> None:
        self._open: _OpenItem | None = None
        self._done: list[OutputItem] = []
        self._num_earlier = 0
        self._round_start = 0
        self._pending: list[PendingCall] = []

    @property
    def pending(self) -> Sequence[PendingCall]:
        return tuple(self._pending)

    @property
    def waits_for_client(self) -> bool:
        return any(isinstance(item, _FOR_CLIENTS) for item in self._done)

    @property
    def of_round(self) -> Sequence[OutputItem]:
        return self._done[self._round_start :]

    def start_round(self) -> None:
        self._round_start = len(self._done)

    def write_summary(self, item: CompactionItem) -> list[Chunk]:
        place = _ItemPlace(self.numbers, item.id, len(self._done))
        self._done.append(item)
        self._num_earlier += 1
        return [place.item(_ADDED, item), place.item(_DONE, item)]

    def write_listing(self, listing: ToolListing) -> list[Chunk]:
        place = self._place(McpListItem)
        empty = McpListItem(id=place.id, server_label=listing.label, tools=())
        tools = tuple(map(msgspec.structs.asdict, listing.tools))
        item = msgspec.structs.replace(empty, tools=tools, error=listing.error)
        self._done.append(item)
        self._num_earlier += 1
        return [
            place.item(_ADDED, empty),
            place.event("response.mcp_list_tools.in_progress"),
            place.event(f"response.mcp_list_tools.{'failed' if listing.error else 'completed'}"),
            place.item(_DONE, item),
        ]

    def write_call(
        self, tool: OfferedTool, arguments: str, approval_id: str | None, answer: McpAnswer
    ) -> list[Chunk]:
        chunks = self._begin(_OpenMcpCall(self._place(McpCallItem), tool, approval_id))
        chunks += self._more(arguments) + self.close("completed")
        return chunks + self.write_answer(self._pending[-1], answer)

    def write_answer(self, pending: PendingCall, answer: McpAnswer) -> list[Chunk]:
        self._pending.remove(pending)
        self._done[pending.position], chunks = pending.call.answered(answer)
        return chunks

    def write(self, part: tool_formats.Part, scores: Sequence[TokenEntry] = ()) -> list[Chunk]:
        if self.is_compacting:
            text = part.text if isinstance(part, tool_formats.Content) else ""
            return [*self._opened(_OpenSummary, CompactionItem), *self._more(text)]
        match part:
            case tool_formats.Content(text):
                return [*self._opened(_OpenMessage, MessageItem), *self._more(text, scores)]
            case tool_formats.ThinkingText(text):
                return [*self._opened(_OpenReasoning, ReasoningItem), *self._more(text)]
            case tool_formats.CallBegin(name, takes_text):
                return self._begin(self._open_call(name, takes_text=takes_text))
            case tool_formats.CallArguments(text) | tool_formats.CallText(text):
                return self._more(text)

    def close(self, status: str) -> list[Chunk]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        if isinstance(item, _OpenMcpCall) and status == "completed":
            self._pending.append(PendingCall(len(self._done), item))
            self._done.append(item.item("incomplete"))  # until it was made
        else:
            self._done.append(item.item(status))
        return item.end(status)

    def end(self, status: str) -> list[Chunk]:
        """A response without output has an empty message."""
        chunks: list[Chunk] = []
        if self._open is None and len(self._done) == self._num_earlier:
            is_summary = self.is_compacting
            opening, kind = (_OpenSummary, CompactionItem) if is_summary else (_OpenMessage, MessageItem)
            chunks = self._begin(opening(self._place(kind)))
        return chunks + self.close(status)

    def items(self, status: str = "incomplete") -> list[OutputItem]:
        return self._done + ([self._open.item(status)] if self._open is not None else [])

    def _opened(self, opening: type[_OpenItem], kind: type[OutputItem]) -> list[Chunk]:
        return [] if type(self._open) is opening else self._begin(opening(self._place(kind)))

    def _begin(self, item: _OpenItem) -> list[Chunk]:
        before = self.close("completed")
        self._open = item
        return before + item.begin()

    def _more(self, text: str, scores: Sequence[TokenEntry] = ()) -> list[Chunk]:
        assert self._open is not None, "arguments belong to a call"
        return self._open.more(text, scores)

    def _open_call(self, name: str, *, takes_text: bool) -> _OpenItem:
        tool = self.offered.get(name)
        if tool is None and takes_text:
            return _OpenCustomCall(self._place(CustomCallItem), self.new_call_id(), name)
        if tool is None:
            return _OpenFunctionCall(self._place(FunctionCallItem), self.new_call_id(), name)
        if tool.needs_approval:
            return _OpenApproval(self._place(ApprovalRequestItem), tool)
        return _OpenMcpCall(self._place(McpCallItem), tool)

    def _place(self, kind: type) -> _ItemPlace:
        index = len(self._done) + (self._open is not None)
        return _ItemPlace(self.numbers, self.new_id(kind), index)


class StreamStage(enum.Enum):
    """Latest reported stage, which only advances."""

    CREATED = "created"
    QUEUED = "queued"
    IN_PROGRESS = "in progress"
    SPEAKING = "speaking"


class ResponseStream(Renderer):
    """Builds complete responses too. Keepalives are numbered events."""

    def __init__(
        self,
        call: ResolvedRequest,
        pieces: PieceTexts,
        response: objects.ResponseObject,
        *,
        now: Callable[[], float] = time.time,
        new_call_id: NewId = new_tool_call_id,
        new_item_id: NewItemId = new_item_id,
        is_compacting: bool = False,
        summary: objects.WrittenSummary | None = None,
        tools: McpTools | None = None,
    ) -> None:
        self.response = response
        self._call = call
        self._pieces = pieces
        self._reader = call.reader()
        self._numbers = EventNumbers()
        offered = tools.offered if tools else {}
        self.output = OutputWriter(self._numbers, new_call_id, new_item_id, offered, is_compacting)
        self._summary = summary
        self._now = now
        self._content_scores = ContentScores()
        self._tokens: list[int] = []
        self._has_reasoned = False
        self._num_rounds = 1
        self.is_whole = False
        """True if the last generation ended by itself."""
        self._ended_by: EndedBy = msgspec.UNSET
        self._stage = StreamStage.CREATED

    @property
    def written(self) -> tuple[int, ...]:
        """Return the next turn's tokens, unless there are thoughts or several rounds."""
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

    @property
    def _end_status(self) -> str:
        return "completed" if self.is_whole else "incomplete"

    def begin(self) -> Sequence[Chunk]:
        """Background responses alone are known to wait."""
        created = self._about("response.created")
        if self.response.status != ResponseStatus.QUEUED.value:
            return [created]
        self._stage = StreamStage.QUEUED
        return [created, self._about("response.queued")]

    def waiting(self, news: messages.QueuePlace | messages.ModelLoading) -> Sequence[Chunk]:
        """Report the queue once, then keepalives, except in the background."""
        if self._stage is not StreamStage.CREATED:
            return () if self.response.background else self.keepalive()
        self._stage = StreamStage.QUEUED
        return [self._about("response.queued", ResponseStatus.QUEUED)]

    def prompt(self, request_id: str, progress: messages.PromptProgress, figures: Figures) -> Sequence[Chunk]:
        """Add our own field to an event that clients know."""
        is_queued = progress.place is not None and self._stage is not StreamStage.IN_PROGRESS
        self._stage = StreamStage.QUEUED if is_queued else StreamStage.IN_PROGRESS
        status = ResponseStatus.QUEUED if is_queued else ResponseStatus.IN_PROGRESS
        event = self._about(f"response.{status.value}", status)
        return [Chunk(b"%b,%b}" % (event.json[:-1], progress_field(progress, figures)), event.event)]

    def keepalive(self) -> Sequence[Chunk]:
        """Keep clients that give up silent streams."""
        if self._stage is StreamStage.SPEAKING:
            return ()
        self._stage = StreamStage.IN_PROGRESS
        return [self._about("response.in_progress", ResponseStatus.IN_PROGRESS)]

    def event(self, event: messages.TokenEvent) -> Sequence[Chunk]:
        chunks = [*self._started()]
        self._tokens += event.tokens
        if self._call.shown_logprobs is not None:
            self._content_scores.add(event)
        if event.finish is not None:
            finish_reason(event.finish)  # raises for reasons that are not a result
            self.is_whole = event.finish.reason is messages.FinishReason.STOP
            self._ended_by = ended_by(event.finish)
        for part in self._reader.read(event):
            self._has_reasoned |= isinstance(part, tool_formats.ThinkingText)
            scores = self._content_scores.take()
            is_shown = scores and isinstance(part, tool_formats.Content)
            entries = chat_logprobs(scores, self._pieces).content if is_shown else ()
            chunks += self.output.write(part, entries)
        return chunks

    def start_round(self, call: ResolvedRequest, pieces: PieceTexts) -> None:
        self._call, self._pieces, self._reader = call, pieces, call.reader()
        self._content_scores, self._tokens, self._has_reasoned = ContentScores(), [], False
        self._num_rounds += 1
        self.output.start_round()

    def end_round(self) -> Sequence[Chunk]:
        return self.output.close(self._end_status)

    def end(self, figures: Figures) -> Sequence[Chunk]:
        chunks = self.output.end(self._end_status)
        items, now_s = self.output.items(self._end_status), int(self._now())
        if self._summary is not None:
            figures = of_rounds([self._summary.figures, figures])
        usage = objects.ResponseUsage.of(figures)
        self.response = objects.ended(
            self.response, items, usage, is_whole=self.is_whole, now_s=now_s, ended_by=self._ended_by
        )
        return [*chunks, self._about(f"response.{self.response.status}")]

    def warmed(self, figures: Figures) -> Sequence[Chunk]:
        chunks = [*self.begin(), *self._started()]
        usage = objects.ResponseUsage.of(figures)
        self.response = objects.ended(self.response, (), usage, is_whole=True, now_s=int(self._now()))
        return [*chunks, self._about("response.completed")]

    def failed(self, error: ErrorObject) -> objects.ResponseObject:
        return objects.failed(self.response, self.output.items(), error)

    def error(self, error: ErrorObject) -> Sequence[Chunk]:
        self.response = self.failed(error)
        body = error.error
        fields = {"code": body.code or body.type, "message": body.message, "param": body.param}
        return [self._numbers.event("error", fields), self._about("response.failed")]

    def cancel(self) -> Sequence[Chunk]:
        """OpenAI has no event for cancellation."""
        self.response = objects.cancelled(self.response, self.output.items())
        return [self._about("response.failed")]

    def _started(self) -> Sequence[Chunk]:
        if self._stage is StreamStage.SPEAKING:
            return ()
        chunks = () if self._stage is StreamStage.IN_PROGRESS else self.keepalive()
        self._stage = StreamStage.SPEAKING
        return chunks if self._summary is None else [*chunks, *self.output.write_summary(self._summary.item)]

    def _about(self, kind: str, status: ResponseStatus | None = None) -> Chunk:
        if status is not None:
            self.response = msgspec.structs.replace(self.response, status=status.value)
        return self._numbers.event(kind, {"response": self.response})


def encoded(response: objects.ResponseObject) -> bytes:
    return msgspec.json.encode(response)
