"""Items of the Responses API become the messages of a conversation. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.asking.ask import (
    AskedDocument,
    AskedMessage,
    AskedPicture,
    AskedSound,
    Attached,
    DocumentSource,
    EarlierAnswer,
    PictureSource,
    SoundSource,
)
from openai_cpu_server.api.asking.body import LACKS, ForeignKind, words_in
from openai_cpu_server.api.responses import body as schema
from openai_cpu_server.api.responses.objects import (
    IN_NAMESPACE,
    CallItem,
    CompactionItem,
    CustomCallItem,
    CustomCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputText,
    Part,
    ReasoningItem,
    ReasoningText,
    RefusalText,
    SummaryText,
    new_item_id,
)
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.template import joined, to_json
from openai_cpu_server.prompt.tool_formats import INPUT

_SUM_UP = """\
Sum up this conversation for somebody who goes on with it and has read nothing of it. Tell what is wanted, \
what was decided and done, which files and facts matter, and what is left to do. Answer with the summary \
alone."""
_TRIGGER = (InputText(_SUM_UP),)
_RULES = ("system", "developer")
_SUMMARY = "This is a summary of the conversation so far:\n"
_CALLS = (FunctionCallItem, CustomCallItem)
_OUTPUTS = (FunctionCallOutputItem, CustomCallOutputItem)
_SENT_OUTPUTS = (schema.SentFunctionOutput, schema.SentCustomOutput)


class SourcedItem(msgspec.Struct, frozen=True):
    item: Item
    param: str
    answer: EarlierAnswer | None = None
    """The item is a part of this answer of before."""


def new_items(given: str | Sequence[schema.InputItem] | None, found: Mapping[str, Item]) -> list[SourcedItem]:
    """The body's items with ids of their own. `found`: what its references mean. Raises InvalidRequest."""
    if given is None:
        return []
    if isinstance(given, str):
        text = (InputText(given),)
        return [SourcedItem(MessageItem(id=new_item_id(MessageItem), role="user", content=text), "input")]
    return [
        SourcedItem(item, param)
        for param, one in ((f"input[{index}]", one) for index, one in enumerate(given))
        for item in (_foreign(one) if isinstance(one, ForeignKind) else [_item(one, param, found)])
    ]


def told_in_words(given: str | Sequence[schema.InputItem] | None) -> list[str]:
    """Items and parts of kinds that there are not here, as a header names them."""
    names: list[str] = []
    for index, one in enumerate(given if isinstance(given, list) else ()):
        content = getattr(one, "output" if isinstance(one, _SENT_OUTPUTS) else "content", None)
        kinds = [(one, f"input[{index}]")]
        kinds += [(part, f"input[{index}].content[{at}]") for at, part in enumerate(content or ())]
        foreign = [(kind, at) for kind, at in kinds if isinstance(kind, ForeignKind)]
        names += [kind.named(at) for kind, at in foreign if kind.picture is None and kind.sound is None]
    return names


def references(given: str | Sequence[schema.InputItem] | None) -> list[str]:
    if given is None or isinstance(given, str):
        return []
    return [one.id for one in given if isinstance(one, schema.ItemReference)]


def turns(items: Iterable[SourcedItem]) -> list[AskedMessage]:
    """The messages that these items are. What the assistant reasons, says and calls in a row is one
    message."""
    messages: list[AskedMessage] = []
    open_turn: _Turn | None = None
    for sourced in items:
        item = sourced.item
        if _is_assistants(item):
            if open_turn is None or not open_turn.takes(sourced):
                messages += _closed(open_turn)
                open_turn = _Turn(sourced.answer, sourced.param)
            open_turn.add(item)
            continue
        messages += _closed(open_turn)
        open_turn = None
        messages.append(AskedMessage(_message(item), path=sourced.param))
    return _once(messages + _closed(open_turn))


def _once(messages: Sequence[AskedMessage]) -> list[AskedMessage]:
    """An answer that has become several messages is none of them alone."""
    seen = Counter(id(one.own) for one in messages if one.own is not None)
    is_part = [seen.get(id(one.own), 0) > 1 for one in messages]
    return [
        msgspec.structs.replace(one, own=None) if alone else one
        for one, alone in zip(messages, is_part, strict=True)
    ]


def current(items: Sequence[SourcedItem]) -> Sequence[SourcedItem]:
    """What of a conversation is to be shown: what its last summary has summed up is left out.

    A summary that an answer follows was made on the way to it, and it answers what stood last before the
    summary. Before any other summary stands what users have said word for word.
    """
    found = [at for at, one in enumerate(items) if isinstance(one.item, CompactionItem)]
    if not found:
        return items
    before, summary, after = items[: found[-1]], items[found[-1]], items[found[-1] + 1 :]
    if after and _is_assistants(after[0].item):
        return [*summed_up(before, summary), *after]
    return [*(one for one in before if _is_said(one.item)), summary, *after]


def summed_up(items: Sequence[SourcedItem], summary: SourcedItem) -> list[SourcedItem]:
    """What is still to be shown to the model that is to answer now: the system's messages, the summary, and
    what nobody has answered yet."""
    rules = [one for one in items if isinstance(one.item, MessageItem) and one.item.role in _RULES]
    return [*rules, summary, *(one for one in _unanswered(items) if one not in rules)]


def _unanswered(items: Sequence[SourcedItem]) -> Sequence[SourcedItem]:
    """What stands behind the assistant's last item; results of tools come with their calls."""
    first = len(items)
    while first and not _is_assistants(items[first - 1].item):
        first -= 1
    if any(isinstance(one.item, _OUTPUTS) for one in items[first:]):
        while first and _is_assistants(items[first - 1].item):
            first -= 1
    return [one for one in items[first:] if not isinstance(one.item, CompactionItem)]


def is_answered(items: Iterable[SourcedItem]) -> bool:
    """The assistant has said something already."""
    return any(_is_assistants(one.item) for one in items)


def _is_said(item: Item) -> bool:
    return isinstance(item, MessageItem) and item.role != "assistant" and not is_trigger(item)


def is_trigger(item: Item) -> bool:
    """It asked for a summary, and is no part of what was said."""
    return isinstance(item, MessageItem) and item.content == _TRIGGER


def with_instructions(messages: Sequence[AskedMessage], instructions: str | None) -> list[AskedMessage]:
    """Instructions are the first of the system's messages."""
    first = [AskedMessage({"role": "system", "content": instructions})] if instructions else []
    return [*first, *messages]


@dataclass
class _Turn:
    """What the assistant did in a row."""

    answer: EarlierAnswer | None
    path: str
    texts: list[str] = field(default_factory=list)
    calls: list[Mapping[str, object]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def takes(self, sourced: SourcedItem) -> bool:
        """Whether it is still the same message: thoughts come first, then text, then calls."""
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
            case FunctionCallOutputItem() | CustomCallOutputItem() | CompactionItem():
                raise AssertionError("this is not the assistant's")

    def _call(self, item: CallItem, arguments: str) -> None:
        stem = "" if item.namespace is UNSET else f"{item.namespace}{IN_NAMESPACE}"
        function = {"name": stem + item.name, "arguments": arguments}
        self.calls.append({"id": item.call_id, "type": "function", "function": function})

    def message(self) -> AskedMessage:
        """Whether thoughts of before are shown to the model is for its template to say."""
        fields: dict[str, object] = {"role": "assistant", "content": "\n".join(self.texts)}
        if self.calls:
            fields["tool_calls"] = self.calls
        if thoughts := "\n".join(self.thoughts):
            fields["reasoning_content"] = thoughts
        return AskedMessage(fields, self.answer, self.path)


def parts_text(content: str | Sequence[Part]) -> str:
    if isinstance(content, str):
        return content
    return joined(map(_part_text, content))


def _part_text(part: Part) -> str:
    match part:
        case RefusalText(refusal=text):
            return text
        case InputImage(source=source) | InputAudio(source=source) | InputFile(source=source):
            return source.mark
    return part.text


def attached_in(items: Sequence[SourcedItem]) -> Iterator[Attached]:
    """All that these items show and attach, those of earlier turns too."""
    for sourced in items:
        item, is_asked = sourced.item, sourced is items[-1]
        field = "output" if isinstance(item, _OUTPUTS) else "content"
        content = getattr(item, field, ())
        for number, part in enumerate(content if isinstance(content, tuple) else ()):
            at = f"{sourced.param}.{field}[{number}]"
            if isinstance(part, InputImage):
                picture, name = part.source, f"{at} (input_image)"
                yield AskedPicture(picture.mark, *picture, at, name, LACKS["input_image"])
            if isinstance(part, InputAudio):
                sound, name = part.source, f"{at} (input_audio)"
                yield AskedSound(sound.mark, *sound, at, name, LACKS["input_audio"])
            if isinstance(part, InputFile):
                document = part.source
                yield AskedDocument(document.mark, *document, at, f"{at} (input_file)", is_asked)


def _closed(turn: _Turn | None) -> list[AskedMessage]:
    return [] if turn is None else [turn.message()]


def _is_assistants(item: Item) -> bool:
    return isinstance(item, (*_CALLS, ReasoningItem)) or (
        isinstance(item, MessageItem) and item.role == "assistant"
    )


def _message(item: Item) -> Mapping[str, object]:
    if isinstance(item, (FunctionCallOutputItem, CustomCallOutputItem)):
        return {"role": "tool", "content": parts_text(item.output), "tool_call_id": item.call_id}
    if isinstance(item, CompactionItem):
        return {"role": "user", "content": _SUMMARY + item.encrypted_content.removeprefix(schema.OWN_SUMMARY)}
    assert isinstance(item, MessageItem)
    assert item.role in ("user", "system", "developer"), "the schema refuses other roles"
    return {"role": item.role, "content": parts_text(item.content)}


_CALL, _OUTPUT = "_call", "_call_output"
_ASKED = ("input", "action", "operation", "arguments", "code", "queries")
"""The fields in which calls of other tools than functions say what is asked of them."""


def _foreign(given: ForeignKind) -> list[Item]:
    """An item of a kind that is not made here, as one that is. A call of another tool is one of a function,
    and its result that of one; what a service called itself is told in words. The rest says nothing."""
    fields, kind = given.fields, given.type
    call_id = fields.get("call_id", fields.get("id") if kind.endswith(_OUTPUT) else None)
    if kind.endswith(_OUTPUT) and isinstance(call_id, str):
        item_id = new_item_id(FunctionCallOutputItem)
        return [FunctionCallOutputItem(id=item_id, call_id=call_id, output=given.words)]
    if not kind.endswith(_CALL):
        return []
    name = str(fields.get("name") or kind.removesuffix(_CALL))
    asked = {field: fields[field] for field in _ASKED if fields.get(field)}
    if isinstance(call_id, str):
        item_id = new_item_id(FunctionCallItem)
        return [FunctionCallItem(id=item_id, call_id=call_id, name=name, arguments=to_json(asked))]
    told = "\n".join(filter(None, (f"[{name}: {to_json(asked)}]", words_in(given.fields))))
    return [MessageItem(id=new_item_id(MessageItem), role="assistant", content=(OutputText(told),))]


def _item(given: schema.InputItem, param: str, found: Mapping[str, Item]) -> Item:
    match given:
        case schema.SentMessageItem():
            return _message_item(given)
        case schema.SentFunctionCall() | schema.SentCustomCall():
            return _call_item(given)
        case schema.SentFunctionOutput() | schema.SentCustomOutput():
            kind = (
                FunctionCallOutputItem
                if isinstance(given, schema.SentFunctionOutput)
                else CustomCallOutputItem
            )
            output = given.output if isinstance(given.output, str) else _parts(given.output, is_output=False)
            return kind(id=given.id or new_item_id(kind), call_id=given.call_id, output=output)
        case schema.SentReasoning():
            return ReasoningItem(
                id=given.id or new_item_id(ReasoningItem),
                summary=tuple(SummaryText(part.text) for part in given.summary or ()),
                content=tuple(ReasoningText(part.text) for part in given.content or ()),
            )
        case schema.SentCompaction(encrypted_content=content):
            return CompactionItem(id=given.id or new_item_id(CompactionItem), encrypted_content=content)
        case schema.CompactionTrigger():
            return trigger_item()
        case schema.ItemReference():
            if given.id not in found:
                message = f"Item with id '{given.id}' not found."
                raise InvalidRequest(message, param=f"{param}.id", code="item_not_found")
            return found[given.id]
        case _:
            raise AssertionError("the schema refuses other items")


def trigger_item() -> MessageItem:
    return MessageItem(id=new_item_id(MessageItem), role="user", content=_TRIGGER)


def _call_item(given: schema.SentFunctionCall | schema.SentCustomCall) -> CallItem:
    namespace = given.namespace or UNSET
    if isinstance(given, schema.SentFunctionCall):
        return FunctionCallItem(
            id=given.id or new_item_id(FunctionCallItem),
            call_id=given.call_id,
            name=given.name,
            namespace=namespace,
            arguments=given.arguments,
        )
    return CustomCallItem(
        id=given.id or new_item_id(CustomCallItem),
        call_id=given.call_id,
        name=given.name,
        namespace=namespace,
        input=given.input,
    )


def _message_item(given: schema.SentMessageItem) -> MessageItem:
    is_output = given.role == "assistant"
    content = [given.content] if isinstance(given.content, str) else given.content
    parts = _parts(content, is_output=is_output)
    return MessageItem(id=given.id or new_item_id(MessageItem), role=given.role, content=parts)


def _parts(given: Sequence[str | schema.Part], *, is_output: bool) -> tuple[Part, ...]:
    kind = OutputText if is_output else InputText
    parts: list[Part] = []
    for one in given:
        match one:
            case str():
                parts.append(kind(one))
            case schema.ItemTextPart():
                parts.append(kind(one.text))
            case schema.RefusalPart():
                parts.append(RefusalText(one.refusal))
            case ForeignKind(document=DocumentSource() as document):
                parts.append(InputFile.of(document))
            case ForeignKind(picture=PictureSource() as picture):
                parts.append(InputImage.of(picture))
            case ForeignKind(sound=SoundSource() as sound):
                parts.append(InputAudio.of(sound, one.fields.get("input_audio")))
            case ForeignKind():
                parts.append(kind(one.words))
    return tuple(parts)
