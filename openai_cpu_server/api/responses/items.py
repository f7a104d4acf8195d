from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Union, get_args

import msgspec

from openai_cpu_server.api.generation import params
from openai_cpu_server.api.generation.logprobs import TokenEntry

OWN_SUMMARY = "openai-cpu-server:"
"""Prefix of our `encrypted_content`, which is plain text because it belongs to the client."""


class _Typed(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class InputText(_Typed, frozen=True, tag="input_text"):
    text: str


class InputImage(_Typed, frozen=True, omit_defaults=True, tag="input_image"):
    """Shown in a form that can be sent again, as audio and files are."""

    image_url: Union[str, None] = None
    file_id: Union[str, None] = None
    detail: str = ""

    @classmethod
    def of(cls, picture: params.AttachmentSource) -> InputImage:
        source, detail = picture.url, picture.label
        if source.startswith(params.UPLOAD):
            return cls(file_id=source.removeprefix(params.UPLOAD), detail=detail)
        return cls(image_url=source, detail=detail)

    @property
    def source(self) -> params.AttachmentSource:
        url = self.image_url or f"{params.UPLOAD}{self.file_id}"
        return params.AttachmentSource(params.AttachmentKind.PICTURE, url, self.detail or params.AUTO_DETAIL)


class InputAudio(_Typed, frozen=True, tag="input_audio"):
    input_audio: dict[str, str]
    """Client's object: base64 `data` with `format`, or a `url`."""

    @classmethod
    def of(cls, sound: params.AttachmentSource, content: object) -> InputAudio:
        fields = content if isinstance(content, dict) else {"url": sound.url}
        return cls({name: value for name, value in fields.items() if isinstance(value, str)})

    @property
    def source(self) -> params.AttachmentSource:
        found = params.attachment_source("input_audio", {"input_audio": self.input_audio})
        assert found is not None, "it was looked at before it was kept"
        return found


class InputFile(_Typed, frozen=True, omit_defaults=True, tag="input_file"):
    filename: str = ""
    file_data: Union[str, None] = None
    file_id: Union[str, None] = None
    file_url: Union[str, None] = None

    @classmethod
    def of(cls, document: params.AttachmentSource) -> InputFile:
        source, title = document.url, document.label
        if source.startswith(params.UPLOAD):
            return cls(title, file_id=source.removeprefix(params.UPLOAD))
        if source[:5].lower() == "data:":
            return cls(title, file_data=source)
        return cls(title, file_url=source)

    @property
    def source(self) -> params.AttachmentSource:
        source = self.file_data or self.file_url or f"{params.UPLOAD}{self.file_id}"
        return params.AttachmentSource(params.AttachmentKind.DOCUMENT, source, self.filename)


class OutputText(_Typed, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[TokenEntry, ...] = ()


class RefusalText(_Typed, frozen=True, tag="refusal"):
    refusal: str


class ReasoningText(_Typed, frozen=True, tag="reasoning_text"):
    text: str


class SummaryText(_Typed, frozen=True, tag="summary_text"):
    text: str


ContentPart = Union[InputText, InputImage, InputAudio, InputFile, OutputText, RefusalText]


class _Identified(_Typed, frozen=True, kw_only=True):
    id: str


class _EndedItem(_Identified, frozen=True, kw_only=True):
    status: str = "completed"


class _ToolCall(_EndedItem, frozen=True, kw_only=True):
    call_id: str
    name: str
    namespace: Union[str, msgspec.UnsetType] = msgspec.UNSET


class _ToolOutput(_EndedItem, frozen=True, kw_only=True):
    call_id: str
    output: Union[str, tuple[ContentPart, ...]]


class MessageItem(_EndedItem, frozen=True, kw_only=True, tag="message"):
    role: str
    content: tuple[ContentPart, ...]


class FunctionCallItem(_ToolCall, frozen=True, kw_only=True, tag="function_call"):
    arguments: str
    """JSON text."""


class FunctionCallOutputItem(_ToolOutput, frozen=True, kw_only=True, tag="function_call_output"):
    pass


class CustomCallItem(_ToolCall, frozen=True, kw_only=True, tag="custom_tool_call"):
    input: str


class CustomCallOutputItem(_ToolOutput, frozen=True, kw_only=True, tag="custom_tool_call_output"):
    pass


class ReasoningItem(_EndedItem, frozen=True, kw_only=True, tag="reasoning"):
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] = ()
    encrypted_content: None = None


class CompactionItem(_Identified, frozen=True, kw_only=True, tag="compaction"):
    """Summary that replaces everything before it."""

    encrypted_content: str


class McpListItem(_Identified, frozen=True, kw_only=True, tag="mcp_list_tools"):
    server_label: str
    tools: tuple[dict[str, Any], ...]
    error: Union[str, None] = None


class McpCallItem(_EndedItem, frozen=True, kw_only=True, tag="mcp_call"):
    """Call that this server has made itself, with the result."""

    server_label: str
    name: str
    arguments: str
    output: Union[str, None] = None
    error: Union[str, None] = None
    approval_request_id: Union[str, None] = None


class ApprovalRequestItem(_Identified, frozen=True, kw_only=True, tag="mcp_approval_request"):
    server_label: str
    name: str
    arguments: str


class ApprovalItem(_Identified, frozen=True, kw_only=True, tag="mcp_approval_response"):
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
IN_NAMESPACE = "."
"""Separates a namespace or MCP server from the tool. No other tool's name contains it."""
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
    answer: params.EarlierAnswer | None = None
    """Answer that contains the item."""
