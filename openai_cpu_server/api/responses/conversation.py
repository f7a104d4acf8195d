from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.generation.params import (
    AUTO_DETAIL,
    Attachment,
    AttachmentKind,
    AttachmentSource,
    EarlierAnswer,
    MessageParam,
)
from openai_cpu_server.api.generation.schema import LACKS
from openai_cpu_server.api.responses.items import (
    IN_NAMESPACE,
    OWN_SUMMARY,
    ApprovalItem,
    ApprovalRequestItem,
    CallItem,
    CompactionItem,
    ContentPart,
    CustomCallItem,
    CustomCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    Item,
    ItemWithSource,
    McpCallItem,
    McpListItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    RefusalText,
    named_for_models,
    new_item_id,
)
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.template import joined_texts, to_json
from openai_cpu_server.prompt.tool_formats import INPUT

_SUM_UP = """\
Sum up this conversation for somebody who goes on with it and has read nothing of it. Tell what is wanted, \
what was decided and done, which files and facts matter, and what is left to do. Answer with the summary \
alone."""
_TRIGGER = (InputText(_SUM_UP),)
_SUMMARY = "This is a summary of the conversation so far:\n"
_DENIED = "The user has not approved this call."
_UNANSWERED = "The user has not said whether this call may be made, so it was not made."
_TOOLS = "tools"
_CALLS = (FunctionCallItem, CustomCallItem)
_OUTPUTS = (FunctionCallOutputItem, CustomCallOutputItem)


def to_messages(items: Iterable[ItemWithSource]) -> list[MessageParam]:
    """Consecutive reasoning, text and calls of the assistant form one message."""
    turns: list[MessageParam | _AssistantTurn] = []
    for sourced in _as_functions(items):
        if not _is_assistants(sourced.item):
            turns.append(MessageParam(_message(sourced.item), path=sourced.param))
            continue
        last = turns[-1] if turns else None
        if not (isinstance(last, _AssistantTurn) and last.takes(sourced)):
            last = _AssistantTurn(sourced.answer, sourced.param)
            turns.append(last)
        last.add(sourced.item)
    messages = [turn.message() if isinstance(turn, _AssistantTurn) else turn for turn in turns]
    # An earlier answer that has become several messages is not the source of any of them alone.
    sources = Counter(id(one.own) for one in messages if one.own is not None)
    return [msgspec.structs.replace(one, own=None) if sources[id(one.own)] > 1 else one for one in messages]


def round_messages(items: Sequence[OutputItem], answer: EarlierAnswer | None) -> list[MessageParam]:
    """Include the results of MCP calls."""
    written = [
        _as_call(item) if isinstance(item, McpCallItem) else item
        for item in items
        if not isinstance(item, (CompactionItem, McpListItem))
    ]
    outputs = [_as_output(item) for item in items if isinstance(item, McpCallItem)]
    return to_messages(
        [
            *(ItemWithSource(item, _TOOLS, answer) for item in written),
            *(ItemWithSource(output, _TOOLS) for output in outputs),
        ]
    )


class ApprovedCall(NamedTuple):
    request: ApprovalRequestItem
    param: str


def approved_calls(earlier: Sequence[ItemWithSource], items: Sequence[ItemWithSource]) -> list[ApprovedCall]:
    """Return unmade calls approved by the body's own `items`. Raises InvalidRequest."""
    everything = [one.item for one in (*earlier, *items)]
    requests = {one.id: one for one in everything if isinstance(one, ApprovalRequestItem)}
    made = {one.approval_request_id for one in everything if isinstance(one, McpCallItem)}
    approved: dict[str, ApprovedCall] = {}
    for sourced in items:
        if not isinstance(item := sourced.item, ApprovalItem):
            continue
        request_id, param = item.approval_request_id, f"{sourced.param}.approval_request_id"
        if request_id not in requests:
            raise InvalidRequest(
                f"There is no request for approval '{request_id}'.", param=param, code="item_not_found"
            )
        if item.approve and request_id not in made:
            approved[request_id] = ApprovedCall(requests[request_id], param)
    return list(approved.values())


def listed_servers(items: Iterable[ItemWithSource]) -> frozenset[str]:
    lists = (one.item for one in items if isinstance(one.item, McpListItem))
    return frozenset(one.server_label for one in lists if one.error is None)


def _as_functions(items: Iterable[ItemWithSource]) -> Iterator[ItemWithSource]:
    """Convert MCP calls to function calls with outputs. The output of an unapproved call is the reason."""
    everything = list(items)
    answers = {
        one.item.approval_request_id
        for one in everything
        if isinstance(one.item, (ApprovalItem, McpCallItem))
    }
    requests: dict[str, ApprovalRequestItem] = {}
    for sourced in everything:
        match item := sourced.item:
            case McpListItem():
                continue
            case McpCallItem():
                yield msgspec.structs.replace(sourced, item=_as_call(item))
                yield msgspec.structs.replace(sourced, item=_as_output(item), answer=None)
            case ApprovalRequestItem():
                requests[item.id] = item
                if item.id not in answers:
                    yield from _unmade(sourced, item, _UNANSWERED)
            case ApprovalItem():
                if not item.approve and item.approval_request_id in requests:
                    why = f" {item.reason}" if item.reason else ""
                    yield from _unmade(sourced, requests[item.approval_request_id], _DENIED + why)
            case _:
                yield sourced


def _unmade(sourced: ItemWithSource, request: ApprovalRequestItem, why: str) -> Iterator[ItemWithSource]:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    call = McpCallItem(**fields, error=why)
    yield ItemWithSource(_as_call(call), sourced.param)
    yield ItemWithSource(_as_output(call), sourced.param)


def _as_call(item: McpCallItem) -> FunctionCallItem:
    return FunctionCallItem(
        id=item.id,
        call_id=item.id,
        name=named_for_models(item.name),
        namespace=item.server_label or UNSET,
        arguments=item.arguments,
    )


SHOWN_PICTURE = re.compile(r"!\[picture\]\((data:image/[a-z0-9.+-]{1,40};base64,[\w+/=-]+)\)")
"""Picture in an MCP call's output."""


def _as_output(item: McpCallItem) -> FunctionCallOutputItem:
    text = item.output or "" if item.error is None else f"Error: {item.error}"
    texts = SHOWN_PICTURE.split(text)
    if len(texts) == 1:
        return FunctionCallOutputItem(id=item.id, call_id=item.id, output=text)
    shown = AttachmentSource(AttachmentKind.PICTURE, "", AUTO_DETAIL)
    parts = [
        InputImage.of(msgspec.structs.replace(shown, url=part)) if at % 2 else InputText(part.strip())
        for at, part in enumerate(texts)
        if part.strip()
    ]
    return FunctionCallOutputItem(id=item.id, call_id=item.id, output=tuple(parts))


def round_attachments(items: Sequence[OutputItem]) -> Iterator[Attachment]:
    return item_attachments([ItemWithSource(item, _TOOLS) for item in items])


def current(items: Sequence[ItemWithSource]) -> Sequence[ItemWithSource]:
    """Leave out items that the last summary replaces. Keep items that a following answer answers, else the
    words of users."""
    summaries = [at for at, one in enumerate(items) if isinstance(one.item, CompactionItem)]
    if not summaries:
        return items
    before, summary, after = items[: summaries[-1]], items[summaries[-1]], items[summaries[-1] + 1 :]
    made = (McpCallItem, ApprovalRequestItem)
    if after and (_is_assistants(after[0].item) or isinstance(after[0].item, made)):
        return [*summed_up(before, summary), *after]
    messages = [one for one in before if isinstance(one.item, MessageItem)]
    words = [one for one in messages if not (_is_assistants(one.item) or is_trigger(one.item))]
    return [*words, summary, *after]


def summed_up(items: Sequence[ItemWithSource], summary: ItemWithSource) -> list[ItemWithSource]:
    """Keep system messages, the summary, and unanswered items with the calls that their results belong to."""
    first = len(items)
    while first and not _is_assistants(items[first - 1].item):
        first -= 1
    if any(isinstance(one.item, _OUTPUTS) for one in items[first:]):
        while first and _is_assistants(items[first - 1].item):
            first -= 1
    rules = [
        one for one in items if isinstance(one.item, MessageItem) and one.item.role in ("system", "developer")
    ]
    unanswered = [
        one for one in items[first:] if not isinstance(one.item, CompactionItem) and one not in rules
    ]
    return [*rules, summary, *unanswered]


def is_answered(items: Iterable[ItemWithSource]) -> bool:
    return any(_is_assistants(one.item) for one in items)


def trigger_item() -> MessageItem:
    return MessageItem(id=new_item_id(MessageItem), role="user", content=_TRIGGER)


def is_trigger(item: Item) -> bool:
    return isinstance(item, MessageItem) and item.content == _TRIGGER


def with_instructions(messages: Sequence[MessageParam], instructions: str | None) -> list[MessageParam]:
    first = [MessageParam({"role": "system", "content": instructions})] if instructions else []
    return [*first, *messages]


@dataclass
class _AssistantTurn:
    answer: EarlierAnswer | None
    path: str
    texts: list[str] = field(default_factory=list)
    calls: list[Mapping[str, object]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def takes(self, sourced: ItemWithSource) -> bool:
        """Thoughts come first in a message, then text, then calls."""
        if sourced.answer is not self.answer:
            return False
        return isinstance(sourced.item, _CALLS) or not (self.texts or self.calls)

    def add(self, item: Item) -> None:
        match item:
            case ReasoningItem():
                self.thoughts += [part.text for part in item.content]
            case FunctionCallItem():
                self._call(item, item.arguments)
            case CustomCallItem():
                self._call(item, to_json({INPUT: item.input}))
            case MessageItem():
                self.texts.append(parts_text(item.content))
            case _:
                raise AssertionError("this is not the assistant's")

    def _call(self, item: CallItem, arguments: str) -> None:
        stem = "" if item.namespace is UNSET else f"{item.namespace}{IN_NAMESPACE}"
        function = {"name": stem + item.name, "arguments": arguments}
        self.calls.append({"id": item.call_id, "type": "function", "function": function})

    def message(self) -> MessageParam:
        """Include thoughts, because the template decides if the model sees them."""
        fields: dict[str, object] = {"role": "assistant", "content": "\n".join(self.texts)}
        if self.calls:
            fields["tool_calls"] = self.calls
        if thoughts := "\n".join(self.thoughts):
            fields["reasoning_content"] = thoughts
        return MessageParam(fields, self.answer, self.path)


def parts_text(content: str | Sequence[ContentPart]) -> str:
    return content if isinstance(content, str) else joined_texts(map(_part_text, content))


def _part_text(part: ContentPart) -> str:
    match part:
        case RefusalText(refusal=text):
            return text
        case InputImage(source=source) | InputAudio(source=source) | InputFile(source=source):
            return source.mark
    return part.text


def item_attachments(items: Sequence[ItemWithSource]) -> Iterator[Attachment]:
    """The client is not to blame for pictures of MCP calls."""
    for sourced in items:
        item = _as_output(sourced.item) if isinstance(sourced.item, McpCallItem) else sourced.item
        is_latest = sourced is items[-1] and item is sourced.item
        field = "output" if isinstance(item, _OUTPUTS) else "content"
        content = getattr(item, field, ())
        for number, part in enumerate(content if isinstance(content, tuple) else ()):
            at = f"{sourced.param}.{field}[{number}]"
            if isinstance(part, (InputImage, InputAudio, InputFile)):
                kind = str(type(part).__struct_config__.tag)
                yield Attachment(part.source, at, f"{at} ({kind})", is_latest, LACKS[kind])


def _is_assistants(item: Item) -> bool:
    return isinstance(item, (*_CALLS, ReasoningItem)) or (
        isinstance(item, MessageItem) and item.role == "assistant"
    )


def _message(item: Item) -> Mapping[str, object]:
    if isinstance(item, (FunctionCallOutputItem, CustomCallOutputItem)):
        return {"role": "tool", "content": parts_text(item.output), "tool_call_id": item.call_id}
    if isinstance(item, CompactionItem):
        return {"role": "user", "content": _SUMMARY + item.encrypted_content.removeprefix(OWN_SUMMARY)}
    assert isinstance(item, MessageItem)
    assert item.role in ("user", "system", "developer"), "the schema refuses other roles"
    return {"role": item.role, "content": parts_text(item.content)}
