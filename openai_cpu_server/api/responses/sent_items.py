"""Items in requests, and their conversion to our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Union

from msgspec import UNSET
from pydantic import ConfigDict, Discriminator, Field, JsonValue, Tag

from openai_cpu_server.api.generation.params import AttachmentKind, AttachmentSource
from openai_cpu_server.api.generation.schema import ForeignKind, JsonObject, ListOf, TextOrList, words_in
from openai_cpu_server.api.responses.conversation import trigger_item
from openai_cpu_server.api.responses.items import (
    OWN_SUMMARY,
    ApprovalItem,
    ApprovalRequestItem,
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
    ItemWithSource,
    McpCallItem,
    McpListItem,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    RefusalText,
    SummaryText,
    new_item_id,
)
from openai_cpu_server.api.responses.items import Part as OwnPart
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.parse import Body
from openai_cpu_server.prompt.template import to_json

MAX_ITEMS = 10_000


class EchoedBody(Body):
    """Object that clients send back as they received it, here or elsewhere. Further fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    is_open: ClassVar[bool] = True


class ItemTextPart(EchoedBody):
    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(EchoedBody):
    type: Literal["refusal"]
    refusal: str


def _part_kind(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("input_text", "output_text", "text"):
        return "<text>"
    return "<refusal>" if kind == "refusal" else "<other>"


Part = Annotated[
    Union[
        Annotated[ItemTextPart, Tag("<text>")],
        Annotated[RefusalPart, Tag("<refusal>")],
        Annotated[ForeignKind, Tag("<other>")],
    ],
    Discriminator(_part_kind),
]
Content = TextOrList[ListOf[Part]]
ItemId = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00]*$")]
"""NUL is excluded, because some databases cannot store it."""
CallId = Annotated[str, Field(min_length=1, max_length=256)]


class SentMessageItem(EchoedBody):
    type: Literal["message"] | None = None
    id: ItemId | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


ToolName = Annotated[str, Field(min_length=1, max_length=256)]


class SentFunctionCall(EchoedBody):
    type: Literal["function_call"]
    id: ItemId | None = None
    call_id: CallId
    name: ToolName
    namespace: ToolName | None = None
    arguments: str


class SentFunctionOutput(EchoedBody):
    type: Literal["function_call_output"]
    id: ItemId | None = None
    call_id: CallId
    output: Content


class SentCustomCall(EchoedBody):
    type: Literal["custom_tool_call"]
    id: ItemId | None = None
    call_id: CallId
    name: ToolName
    namespace: ToolName | None = None
    input: str


class SentCustomOutput(EchoedBody):
    type: Literal["custom_tool_call_output"]
    id: ItemId | None = None
    call_id: CallId
    output: Content


class ReasoningPart(EchoedBody):
    type: str
    text: str


class SentReasoning(EchoedBody):
    type: Literal["reasoning"]
    id: ItemId | None = None
    summary: ListOf[ReasoningPart] | None = None
    content: ListOf[ReasoningPart] | None = None
    encrypted_content: str | None = None
    """Thoughts of other servers, which are unreadable here."""


class SentCompaction(EchoedBody):
    """Summary by this server. Those of other services are unreadable here."""

    type: Literal["compaction"]
    id: ItemId | None = None
    encrypted_content: str


class CompactionTrigger(EchoedBody):
    """Last item, which asks for a summary of the others."""

    type: Literal["compaction_trigger"]


class ItemReference(EchoedBody):
    type: Literal["item_reference"] | None = None
    id: ItemId


class SentMcpList(EchoedBody):
    type: Literal["mcp_list_tools"]
    id: ItemId | None = None
    server_label: str = ""
    tools: ListOf[JsonObject] | None = None
    error: JsonValue = None


class SentMcpCall(EchoedBody):
    type: Literal["mcp_call"]
    id: ItemId | None = None
    server_label: str = ""
    name: ToolName
    arguments: str
    output: str | None = None
    error: JsonValue = None
    approval_request_id: ItemId | None = None


class SentApprovalRequest(EchoedBody):
    type: Literal["mcp_approval_request"]
    id: ItemId
    server_label: str
    name: ToolName
    arguments: str


class SentApproval(EchoedBody):
    type: Literal["mcp_approval_response"]
    id: ItemId | None = None
    approval_request_id: ItemId
    approve: bool
    reason: str | None = None


_ITEM_KINDS = frozenset(
    {
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "compaction",
        "compaction_trigger",
        "reasoning",
        "item_reference",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "mcp_approval_response",
    }
)


def _item_kind(value: object) -> str:
    fields = value if isinstance(value, dict) else {}
    kind = fields.get("type")
    if kind == "compaction" and not str(fields.get("encrypted_content")).startswith(OWN_SUMMARY):
        return "<other>"
    if kind is None:
        return "<item_reference>" if set(fields) - {"type"} == {"id"} else "<message>"
    return f"<{kind}>" if isinstance(kind, str) and kind in _ITEM_KINDS else "<other>"


InputItem = Annotated[
    Union[
        Annotated[SentMessageItem, Tag("<message>")],
        Annotated[SentFunctionCall, Tag("<function_call>")],
        Annotated[SentFunctionOutput, Tag("<function_call_output>")],
        Annotated[SentCustomCall, Tag("<custom_tool_call>")],
        Annotated[SentCustomOutput, Tag("<custom_tool_call_output>")],
        Annotated[SentReasoning, Tag("<reasoning>")],
        Annotated[SentCompaction, Tag("<compaction>")],
        Annotated[CompactionTrigger, Tag("<compaction_trigger>")],
        Annotated[ItemReference, Tag("<item_reference>")],
        Annotated[SentMcpList, Tag("<mcp_list_tools>")],
        Annotated[SentMcpCall, Tag("<mcp_call>")],
        Annotated[SentApprovalRequest, Tag("<mcp_approval_request>")],
        Annotated[SentApproval, Tag("<mcp_approval_response>")],
        Annotated[ForeignKind, Tag("<other>")],
    ],
    Discriminator(_item_kind),
]
Input = TextOrList[Annotated[list[InputItem], Field(max_length=MAX_ITEMS, fail_fast=True)]]


_SENT_OUTPUTS = (SentFunctionOutput, SentCustomOutput)


def new_items(given: str | Sequence[InputItem] | None, found: Mapping[str, Item]) -> list[ItemWithSource]:
    """Return the body's items. `found`: items by referenced id. Raises InvalidRequest."""
    if given is None:
        return []
    if isinstance(given, str):
        text = (InputText(given),)
        return [ItemWithSource(MessageItem(id=new_item_id(MessageItem), role="user", content=text), "input")]
    return [
        ItemWithSource(item, param)
        for param, one in ((f"input[{index}]", one) for index, one in enumerate(given))
        for item in (_foreign(one) if isinstance(one, ForeignKind) else [_item(one, param, found)])
    ]


def told_in_words(given: str | Sequence[InputItem] | None) -> list[str]:
    names: list[str] = []
    for index, one in enumerate(given if isinstance(given, list) else ()):
        content = getattr(one, "output" if isinstance(one, _SENT_OUTPUTS) else "content", None)
        parts = content if isinstance(content, list) else ()
        kinds = [
            (one, f"input[{index}]"),
            *((part, f"input[{index}].content[{at}]") for at, part in enumerate(parts)),
        ]
        foreign = [(kind, at) for kind, at in kinds if isinstance(kind, ForeignKind)]
        names += [part.named(at) for part, at in foreign if not _is_medium(part.attachment)]
    return names


def _is_medium(source: AttachmentSource | None) -> bool:
    return source is not None and source.kind is not AttachmentKind.DOCUMENT


def references(given: str | Sequence[InputItem] | None) -> list[str]:
    if given is None or isinstance(given, str):
        return []
    return [one.id for one in given if isinstance(one, ItemReference)]


_CALL, _OUTPUT = "_call", "_call_output"
_ASKED = ("input", "action", "operation", "arguments", "code", "queries")


def _foreign(given: ForeignKind) -> list[Item]:
    """A call of another tool becomes a function call, a call that a service made itself becomes text.
    Other items are dropped."""
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


def _item(given: InputItem, param: str, found: Mapping[str, Item]) -> Item:
    match given:
        case SentMessageItem():
            return _message_item(given)
        case SentFunctionCall() | SentCustomCall():
            return _call_item(given)
        case SentFunctionOutput() | SentCustomOutput():
            kind = FunctionCallOutputItem if isinstance(given, SentFunctionOutput) else CustomCallOutputItem
            output = given.output if isinstance(given.output, str) else _parts(given.output, is_output=False)
            return kind(id=given.id or new_item_id(kind), call_id=given.call_id, output=output)
        case SentReasoning():
            return ReasoningItem(
                id=given.id or new_item_id(ReasoningItem),
                summary=tuple(SummaryText(part.text) for part in given.summary or ()),
                content=tuple(ReasoningText(part.text) for part in given.content or ()),
            )
        case SentMcpList() | SentMcpCall() | SentApprovalRequest() | SentApproval():
            return _mcp_item(given)
        case SentCompaction(encrypted_content=content):
            return CompactionItem(id=given.id or new_item_id(CompactionItem), encrypted_content=content)
        case CompactionTrigger():
            return trigger_item()
        case ItemReference():
            if given.id not in found:
                message = f"Item with id '{given.id}' not found."
                raise InvalidRequest(message, param=f"{param}.id", code="item_not_found")
            return found[given.id]
        case _:
            raise AssertionError("the schema refuses other items")


def _mcp_item(
    given: SentMcpList | SentMcpCall | SentApprovalRequest | SentApproval,
) -> Item:
    match given:
        case SentMcpList():
            return McpListItem(
                id=given.id or new_item_id(McpListItem),
                server_label=given.server_label,
                tools=tuple(dict(tool) for tool in given.tools or ()),
                error=_error(given.error),
            )
        case SentMcpCall():
            return McpCallItem(
                id=given.id or new_item_id(McpCallItem),
                server_label=given.server_label,
                name=given.name,
                arguments=given.arguments,
                output=given.output,
                error=_error(given.error),
                approval_request_id=given.approval_request_id,
            )
        case SentApprovalRequest():
            return ApprovalRequestItem(
                id=given.id,
                server_label=given.server_label,
                name=given.name,
                arguments=given.arguments,
            )
        case SentApproval():
            return ApprovalItem(
                id=given.id or new_item_id(ApprovalItem),
                approval_request_id=given.approval_request_id,
                approve=given.approve,
                reason=given.reason,
            )


def _error(given: object) -> str | None:
    """OpenAI's own servers send objects."""
    return given if given is None or isinstance(given, str) else to_json(given)


def _call_item(given: SentFunctionCall | SentCustomCall) -> CallItem:
    namespace = given.namespace or UNSET
    if isinstance(given, SentFunctionCall):
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


def _message_item(given: SentMessageItem) -> MessageItem:
    is_output = given.role == "assistant"
    content = [given.content] if isinstance(given.content, str) else given.content
    parts = _parts(content, is_output=is_output)
    return MessageItem(id=given.id or new_item_id(MessageItem), role=given.role, content=parts)


def _parts(given: Sequence[str | Part], *, is_output: bool) -> tuple[OwnPart, ...]:
    kind = OutputText if is_output else InputText
    parts: list[OwnPart] = []
    for one in given:
        match one:
            case str():
                parts.append(kind(one))
            case ItemTextPart():
                parts.append(kind(one.text))
            case RefusalPart():
                parts.append(RefusalText(one.refusal))
            case ForeignKind(attachment=AttachmentSource(kind=AttachmentKind.DOCUMENT) as document):
                parts.append(InputFile.of(document))
            case ForeignKind(attachment=AttachmentSource(kind=AttachmentKind.PICTURE) as picture):
                parts.append(InputImage.of(picture))
            case ForeignKind(attachment=AttachmentSource() as sound):
                parts.append(InputAudio.of(sound, one.fields.get("input_audio")))
            case ForeignKind():
                parts.append(kind(one.words))
    return tuple(parts)
