"""Items of the Responses API, as they are shown, stored and continued."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Union, get_args

import msgspec

from openai_cpu_server.api.generation.params import (
    AUTO_DETAIL,
    UPLOAD,
    AttachmentKind,
    AttachmentSource,
    EarlierAnswer,
    attachment_source,
)
from openai_cpu_server.api.generation.renderer import TokenEntry

OWN_SUMMARY = "openai-cpu-server:"
"""Prefix of our `encrypted_content`. The rest is plain text, because it belongs to the client."""


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class InputImage(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="input_image"):
    """Shown in a form that can be sent again, as audio and files are."""

    image_url: Union[str, None] = None
    file_id: Union[str, None] = None
    detail: str = ""

    @classmethod
    def of(cls, picture: AttachmentSource) -> InputImage:
        source, detail = picture.url, picture.label
        if source.startswith(UPLOAD):
            return cls(file_id=source.removeprefix(UPLOAD), detail=detail)
        return cls(image_url=source, detail=detail)

    @property
    def source(self) -> AttachmentSource:
        url = self.image_url or f"{UPLOAD}{self.file_id}"
        return AttachmentSource(AttachmentKind.PICTURE, url, self.detail or AUTO_DETAIL)


class InputAudio(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: dict[str, str]
    """Client's own object: `data` in base64 and its `format`, or a `url`."""

    @classmethod
    def of(cls, sound: AttachmentSource, content: object) -> InputAudio:
        fields = content if isinstance(content, dict) else {"url": sound.url}
        return cls({name: value for name, value in fields.items() if isinstance(value, str)})

    @property
    def source(self) -> AttachmentSource:
        found = attachment_source("input_audio", {"input_audio": self.input_audio})
        assert found is not None, "it was looked at before it was kept"
        return found


class InputFile(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="input_file"):
    filename: str = ""
    file_data: Union[str, None] = None
    file_id: Union[str, None] = None
    file_url: Union[str, None] = None

    @classmethod
    def of(cls, document: AttachmentSource) -> InputFile:
        source, title = document.url, document.label
        if source.startswith(UPLOAD):
            return cls(title, file_id=source.removeprefix(UPLOAD))
        if source[:5].lower() == "data:":
            return cls(title, file_data=source)
        return cls(title, file_url=source)

    @property
    def source(self) -> AttachmentSource:
        source = self.file_data or self.file_url or f"{UPLOAD}{self.file_id}"
        return AttachmentSource(AttachmentKind.DOCUMENT, source, self.filename)


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[TokenEntry, ...] = ()


class RefusalText(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


Part = Union[InputText, InputImage, InputAudio, InputFile, OutputText, RefusalText]


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: str = "completed"
    role: str
    content: tuple[Part, ...]


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: str = "completed"
    call_id: str
    name: str
    namespace: Union[str, msgspec.UnsetType] = msgspec.UNSET
    arguments: str
    """JSON text."""


class FunctionCallOutputItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"
):
    id: str
    status: str = "completed"
    call_id: str
    output: Union[str, tuple[Part, ...]]


class CustomCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    id: str
    status: str = "completed"
    call_id: str
    name: str
    namespace: Union[str, msgspec.UnsetType] = msgspec.UNSET
    input: str


class CustomCallOutputItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call_output"
):
    id: str
    status: str = "completed"
    call_id: str
    output: Union[str, tuple[Part, ...]]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: str = "completed"
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] = ()
    encrypted_content: None = None


class CompactionItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """Summary that replaces everything before it."""

    id: str
    encrypted_content: str


class McpListItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_list_tools"):
    id: str
    server_label: str
    tools: tuple[dict[str, Any], ...]
    error: Union[str, None] = None


class McpCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_call"):
    """Call that this server has made itself, with the result."""

    id: str
    status: str = "completed"
    server_label: str
    name: str
    arguments: str
    """JSON text."""
    output: Union[str, None] = None
    error: Union[str, None] = None
    approval_request_id: Union[str, None] = None


class ApprovalRequestItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_request"
):
    id: str
    server_label: str
    name: str
    arguments: str


class ApprovalItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_response"):
    id: str
    approval_request_id: str
    approve: bool
    reason: Union[str, None] = None


CallItem = Union[FunctionCallItem, CustomCallItem]
OutputItem = Union[
    MessageItem,
    FunctionCallItem,
    CustomCallItem,
    ReasoningItem,
    CompactionItem,
    McpListItem,
    McpCallItem,
    ApprovalRequestItem,
]
Item = Union[OutputItem, FunctionCallOutputItem, CustomCallOutputItem, ApprovalItem]
PREFIXES: dict[type, str] = {
    MessageItem: "msg_",
    FunctionCallItem: "fc_",
    FunctionCallOutputItem: "fc_",
    CustomCallItem: "ctc_",
    CustomCallOutputItem: "ctco_",
    ReasoningItem: "rs_",
    CompactionItem: "cmp_",
    McpListItem: "mcpl_",
    McpCallItem: "mcp_",
    ApprovalRequestItem: "mcpr_",
    ApprovalItem: "mcpa_",
}
BY_TYPE: Mapping[object, type[Item]] = {kind.__struct_config__.tag: kind for kind in get_args(Item)}
"""Kinds of items by their `type`."""
IN_NAMESPACE = "."
"""Separates a namespace or MCP server from the tool in names for models. No other tool's name contains it."""
_DECODER: msgspec.json.Decoder[Item] = msgspec.json.Decoder(Item)


def named_for_models(tool: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", tool)[:64]


def new_item_id(kind: type) -> str:
    return PREFIXES[kind] + secrets.token_hex(24)


def decoded_item(content: bytes) -> Item:
    return _DECODER.decode(content)


class ItemWithSource(msgspec.Struct, frozen=True):
    item: Item
    param: str
    answer: EarlierAnswer | None = None
    """Earlier answer that contains the item."""
