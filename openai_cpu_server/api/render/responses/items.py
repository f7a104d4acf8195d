"""The items of responses: what goes in, what comes out, and how both are stored."""

from __future__ import annotations

import secrets
from typing import Union

import msgspec

from openai_cpu_server.api.render.chat_logprobs import TokenEntry


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[TokenEntry, ...] = ()


class Refusal(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


Part = Union[InputText, OutputText, Refusal]


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
    arguments: str
    """JSON text."""


class FunctionCallOutputItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"
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


OutputItem = Union[MessageItem, FunctionCallItem, ReasoningItem]
Item = Union[MessageItem, FunctionCallItem, FunctionCallOutputItem, ReasoningItem]
PREFIXES: dict[type, str] = {
    MessageItem: "msg_",
    FunctionCallItem: "fc_",
    FunctionCallOutputItem: "fc_",
    ReasoningItem: "rs_",
}
_DECODER: msgspec.json.Decoder[Item] = msgspec.json.Decoder(Item)


def new_item_id(kind: type) -> str:
    return PREFIXES[kind] + secrets.token_hex(24)


def decoded(content: bytes) -> Item:
    """An item as it was stored."""
    return _DECODER.decode(content)
