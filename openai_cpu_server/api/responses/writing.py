"""Events of output items from the first to the last, numbered over the whole stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Union

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.generation.renderer import Chunk, TokenEntry, json_text, one_line
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
from openai_cpu_server.api.responses.toolbox import OfferedTool, ToolListing
from openai_cpu_server.contract.mcp import McpAnswer, McpTool
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
    def __init__(self, first: int = 0) -> None:
        self._next = first

    def event(self, kind: str, fields: Mapping[str, object]) -> Chunk:
        named = {"type": kind, "sequence_number": self._take(), **fields}
        return Chunk(one_line(msgspec.json.encode(named)), kind)

    def delta(self, kind: str, place: bytes, text: str, tail: bytes) -> Chunk:
        """`place`: fields before the text. `tail`: end of the object after it."""
        head = b'{"type":"%b","sequence_number":%d,' % (kind.encode(), self._take())
        return Chunk(head + place + b',"delta":' + json_text(text) + tail, kind)

    def _take(self) -> int:
        number = self._next
        self._next += 1
        return number


class ItemWriting:
    """Writes items in order; one is open at a time."""

    def __init__(
        self,
        numbers: EventNumbers,
        new_call_id: Callable[[], str],
        new_id: NewItemId = new_item_id,
        *,
        offered: Mapping[str, OfferedTool] = MappingProxyType({}),
        is_compacting: bool = False,
    ):
        """`offered`: MCP tools by the names that the model sees. `is_compacting`: thoughts are dropped."""
        self._offered = offered
        self._is_compacting = is_compacting
        self._numbers = numbers
        self._new_call_id = new_call_id
        self._new_id = new_id
        self._open: ItemWriter | None = None
        self._done: list[OutputItem] = []
        self._num_given = 0
        """Items that existed before any output."""
        self._round_start = 0
        self._waiting: list[PendingCall] = []

    @property
    def waiting(self) -> Sequence[PendingCall]:
        return tuple(self._waiting)

    @property
    def waits_for_client(self) -> bool:
        return any(isinstance(item, _FOR_CLIENTS) for item in self._done)

    @property
    def of_round(self) -> Sequence[OutputItem]:
        return self._done[self._round_start :]

    def start_round(self) -> None:
        self._round_start = len(self._done)

    def give(self, item: CompactionItem) -> list[Chunk]:
        place = _ItemPlace(self._numbers, item.id, len(self._done))
        self._done.append(item)
        self._num_given += 1
        return [place.item(_ADDED, item), place.item(_DONE, item)]

    def tell_listing(self, listing: ToolListing) -> list[Chunk]:
        place = self._place(McpListItem)
        item = McpListItem(id=place.id, server_label=listing.label, tools=())
        told = msgspec.structs.replace(
            item, tools=tuple(map(_shown_tool, listing.tools)), error=listing.error
        )
        self._done.append(told)
        self._num_given += 1
        return [
            place.item(_ADDED, item),
            place.event("response.mcp_list_tools.in_progress"),
            place.event(f"response.mcp_list_tools.{'failed' if listing.error else 'completed'}"),
            place.item(_DONE, told),
        ]

    def tell_call(
        self, one: OfferedTool, arguments: str, approval_id: str | None, answer: McpAnswer
    ) -> list[Chunk]:
        chunks = self._begun(_McpWriter(self._place(McpCallItem), one, approval_id))
        chunks += self._more(arguments, ()) + self._closed("completed")
        return chunks + self.tell_answer(self._waiting[-1], answer)

    def tell_answer(self, call: PendingCall, answer: McpAnswer) -> list[Chunk]:
        self._waiting.remove(call)
        self._done[call.at], chunks = call.writer.answered(answer)
        return chunks

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
                return self._begun(self._call_writer(name, takes_text=takes_text))
            case CallArguments(text) | CallText(text):
                return self._more(text, ())

    def end_round(self, *, is_whole: bool) -> list[Chunk]:
        return self._closed("completed" if is_whole else "incomplete")

    def end(self, *, is_whole: bool) -> list[Chunk]:
        """End the last item. A response without output has an empty message."""
        kind = CompactionItem if self._is_compacting else MessageItem
        is_empty = self._open is None and len(self._done) == self._num_given
        chunks = self._opened(kind) if is_empty else []
        return chunks + self._closed("completed" if is_whole else "incomplete")

    def items(self, *, is_whole: bool = False) -> list[OutputItem]:
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
        if isinstance(writer, _McpWriter) and status == "completed":
            self._waiting.append(PendingCall(len(self._done), writer))
            self._done.append(writer.item("incomplete"))  # until it was made
        else:
            self._done.append(writer.item(status))
        return writer.end(status)

    def _call_writer(self, name: str, *, takes_text: bool) -> ItemWriter:
        one = self._offered.get(name)
        if one is None:
            kind = CustomCallItem if takes_text else FunctionCallItem
            return _CallWriter(kind, self._place(kind), self._new_call_id(), name)
        if one.needs_approval:
            return _ApprovalWriter(self._place(ApprovalRequestItem), one)
        return _McpWriter(self._place(McpCallItem), one)

    def _place(self, kind: type) -> _ItemPlace:
        index = len(self._done) + (self._open is not None)
        return _ItemPlace(self._numbers, self._new_id(kind), index)


class _ItemPlace:
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
    """Sent without deltas."""

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


class _McpWriter:
    """Call that this server makes, done once it has a result."""

    def __init__(self, place: _ItemPlace, one: OfferedTool, approval_id: str | None = None) -> None:
        self.one = one
        self._place = place
        self._approval_id = approval_id
        self._texts: list[str] = []

    @property
    def id(self) -> str:
        return self._place.id

    @property
    def arguments(self) -> str:
        return "".join(self._texts)

    def begin(self) -> list[Chunk]:
        added = self._place.item(_ADDED, self.item("in_progress"))
        return [added, self._place.event("response.mcp_call.in_progress")]

    def more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        self._texts.append(text)
        return [self._place.delta("response.mcp_call_arguments.delta", text)]

    def end(self, status: str) -> list[Chunk]:
        done = self._place.event("response.mcp_call_arguments.done", arguments=self.arguments)
        return [done] if status == "completed" else [done, self._place.item(_DONE, self.item(status))]

    def answered(self, answer: McpAnswer) -> tuple[McpCallItem, list[Chunk]]:
        status = "failed" if answer.is_error else "completed"
        said = {"error": answer.text} if answer.is_error else {"output": answer.text}
        item = msgspec.structs.replace(self.item(status), **said)
        took = {} if answer.duration_ms is None else {"duration_ms": answer.duration_ms}
        told = self._place.event(f"response.mcp_call.{status}", **took)
        return item, [told, self._place.item(_DONE, item)]

    def item(self, status: str) -> McpCallItem:
        return McpCallItem(
            id=self._place.id,
            status=status,
            server_label=self.one.label,
            name=self.one.tool.name,
            arguments=self.arguments,
            approval_request_id=self._approval_id,
        )


class _ApprovalWriter:
    """Sent without deltas."""

    def __init__(self, place: _ItemPlace, one: OfferedTool) -> None:
        self._place = place
        self._one = one
        self._texts: list[str] = []

    def begin(self) -> list[Chunk]:
        return []

    def more(self, text: str, scores: Sequence[TokenEntry]) -> list[Chunk]:
        self._texts.append(text)
        return []

    def end(self, status: str) -> list[Chunk]:
        return [self._place.item(kind, self.item(status)) for kind in (_ADDED, _DONE)]

    def item(self, status: str) -> OutputItem:
        return ApprovalRequestItem(
            id=self._place.id,
            server_label=self._one.label,
            name=self._one.tool.name,
            arguments="".join(self._texts),
        )


class PendingCall(NamedTuple):
    at: int
    writer: _McpWriter


_FOR_CLIENTS = (FunctionCallItem, CustomCallItem, ApprovalRequestItem)


def _shown_tool(tool: McpTool) -> dict[str, object]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": tool.annotations,
    }


ItemWriter = Union[_MessageWriter, _ReasoningWriter, _CallWriter, _SummaryWriter, _McpWriter, _ApprovalWriter]
_OPENED: dict[type, type[_MessageWriter] | type[_ReasoningWriter] | type[_SummaryWriter]] = {
    MessageItem: _MessageWriter,
    ReasoningItem: _ReasoningWriter,
    CompactionItem: _SummaryWriter,
}
