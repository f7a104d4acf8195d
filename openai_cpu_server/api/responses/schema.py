from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation import schema as shared
from openai_cpu_server.api.generation.params import JsonObject
from openai_cpu_server.api.responses.items import OWN_SUMMARY
from openai_cpu_server.http import ignored_params
from openai_cpu_server.http.parse import Body, by_type, by_value

_MAX_ITEMS = 10_000


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


SentPart = Annotated[Union[ItemTextPart, RefusalPart, shared.ForeignKind], by_type()]
_Content = shared.TextOrList[shared.ListOf[SentPart]]
ItemId = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00]*$")]
"""Some databases cannot store NUL."""
CallId = Annotated[str, Field(min_length=1, max_length=256)]


class SentItem(EchoedBody):
    id: ItemId | None = None


class SentMessageItem(SentItem):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


ToolName = Annotated[str, Field(min_length=1, max_length=256)]


class SentCallItem(SentItem):
    call_id: CallId
    name: ToolName
    namespace: ToolName | None = None


class SentOutputItem(SentItem):
    call_id: CallId
    output: _Content


class SentFunctionCall(SentCallItem):
    type: Literal["function_call"]
    arguments: str


class SentFunctionOutput(SentOutputItem):
    type: Literal["function_call_output"]


class SentCustomCall(SentCallItem):
    type: Literal["custom_tool_call"]
    input: str


class SentCustomOutput(SentOutputItem):
    type: Literal["custom_tool_call_output"]


class ReasoningPart(EchoedBody):
    type: str
    text: str


class SentReasoning(SentItem):
    type: Literal["reasoning"]
    summary: shared.ListOf[ReasoningPart] | None = None
    content: shared.ListOf[ReasoningPart] | None = None
    encrypted_content: str | None = None
    """Other servers' thoughts, unreadable here."""


class SentCompaction(SentItem):
    """Summary by this server. Those of other services are unreadable here."""

    type: Literal["compaction"]
    encrypted_content: str


class CompactionTrigger(EchoedBody):
    """Last item, which requests a summary of the others."""

    type: Literal["compaction_trigger"]


class ItemReference(EchoedBody):
    type: Literal["item_reference"] | None = None
    id: ItemId


class SentMcpList(SentItem):
    type: Literal["mcp_list_tools"]
    server_label: str = ""
    tools: shared.ListOf[JsonObject] | None = None
    error: JsonValue = None


class SentMcpCall(SentItem):
    type: Literal["mcp_call"]
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


class SentApproval(SentItem):
    type: Literal["mcp_approval_response"]
    approval_request_id: ItemId
    approve: bool
    reason: str | None = None


def _item_type(value: object) -> str:
    fields = value if isinstance(value, dict) else {}
    kind = fields.get("type")
    if kind is None:
        return "item_reference" if set(fields) - {"type"} == {"id"} else "message"
    is_unreadable = not str(fields.get("encrypted_content")).startswith(OWN_SUMMARY)
    return "" if not isinstance(kind, str) or (kind == "compaction" and is_unreadable) else kind


InputItem = Annotated[
    Union[
        SentMessageItem,
        SentFunctionCall,
        SentFunctionOutput,
        SentCustomCall,
        SentCustomOutput,
        SentReasoning,
        SentCompaction,
        CompactionTrigger,
        ItemReference,
        SentMcpList,
        SentMcpCall,
        SentApprovalRequest,
        SentApproval,
        shared.ForeignKind,
    ],
    by_type(name=_item_type),
]
Input = shared.TextOrList[Annotated[list[InputItem], Field(max_length=_MAX_ITEMS, fail_fast=True)]]


class FunctionTool(EchoedBody):
    type: Literal["function"]
    name: shared.Name
    description: str | None = None
    parameters: shared.ToolSchema | None = None
    strict: bool | None = None


class GrammarFormat(shared.Syntax):
    type: Literal["grammar"]


class TextTool(EchoedBody):
    type: Literal["custom"]
    name: shared.Name
    description: str | None = None
    format: Annotated[Union[GrammarFormat, shared.AnyText], shared.CUSTOM_FORMAT] | None = None


InNamespace = Annotated[Union[FunctionTool, TextTool, shared.ForeignKind], by_type()]


class NamespaceTool(EchoedBody):
    type: Literal["namespace"]
    name: shared.Name
    description: str | None = None
    tools: Annotated[list[InNamespace], Field(max_length=shared.MAX_TOOLS, fail_fast=True)]


class ToolFilter(EchoedBody):
    """Both conditions must hold if both are given."""

    tool_names: shared.ListOf[ToolName] | None = None
    read_only: bool | None = None


class ApprovalRule(EchoedBody):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


AllowedMcpTools = Annotated[Union[shared.ListOf[ToolName], ToolFilter], by_value()]
RequiredApproval = Annotated[Union[Literal["always", "never"], ApprovalRule], by_value()]


class McpServerTool(EchoedBody):
    """Tools of an MCP server, which this server calls itself."""

    type: Literal["mcp"]
    server_label: shared.Name
    """Configured name, or any with `server_url`."""
    server_url: Annotated[str, Field(max_length=2048)] | None = None
    headers: Annotated[dict[str, str], Field(max_length=32)] | None = None
    authorization: str | None = None
    allowed_tools: AllowedMcpTools | None = None
    require_approval: RequiredApproval | None = None
    """Default `always`, as at OpenAI."""
    server_description: str | None = None
    """Hidden from the model, which sees the tools' own descriptions."""
    connector_id: str | None = None
    tunnel_id: str | None = None
    defer_loading: bool | None = None
    allowed_callers: shared.ListOf[str] | None = None


_Tool = Annotated[Union[FunctionTool, TextTool, NamespaceTool, McpServerTool, shared.ForeignKind], by_type()]
"""Tools that OpenAI runs itself and unknown forms are left out."""


class NamedFunction(EchoedBody):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class NamedMcpTool(EchoedBody):
    type: Literal["mcp"]
    server_label: str
    name: str | None = None
    """Any of the server's if None."""


class AllowedToolsChoice(EchoedBody):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[dict[str, JsonValue]], Field(min_length=1, max_length=shared.MAX_TOOLS, fail_fast=True)
    ]


def _refuse_choice(kind: object) -> object:
    if isinstance(kind, str):
        message = (
            "the choice of a tool of type '{kind}' is not supported, only 'function', 'custom' and 'mcp'"
        )
        raise PydanticCustomError("tool_type", message, {"kind": kind[:64]})
    return kind


class OtherChoice(EchoedBody):
    type: Annotated[str, BeforeValidator(_refuse_choice)]


def _choice_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<mode>"
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind in ("function", "custom"):
        return "<named>"
    return f"<{kind}>" if kind in ("allowed_tools", "mcp") else "<other>"


_ToolChoice = Annotated[
    Union[
        Annotated[Literal["none", "auto", "required"], Tag("<mode>")],
        Annotated[NamedFunction, Tag("<named>")],
        Annotated[AllowedToolsChoice, Tag("<allowed_tools>")],
        Annotated[NamedMcpTool, Tag("<mcp>")],
        Annotated[OtherChoice, Tag("<other>")],
    ],
    Discriminator(
        _choice_kind,
        custom_error_type="tool_choice",
        custom_error_message="Input should be 'none', 'auto', 'required' or an object",
    ),
]


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: shared.Name | None = None
    description: str | None = None
    """Hidden from the model."""
    strict: bool | None = None
    json_schema: Annotated[JsonObject | None, Field(alias="schema")] = None


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Body):
    unsupported: ClassVar[ignored_params.UnsupportedParams] = ignored_params.REASONING_UNSUPPORTED

    effort: shared.Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Ignored, because thoughts are shown in full."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """Older name of `summary`."""


class ResponsesStreamOptions(Body):
    include_obfuscation: bool | None = None
    """Ignored, because events carry no padding."""


class ConversationName(Body):
    id: shared.NonEmpty


NamedConversation = Annotated[
    Union[shared.NonEmpty, ConversationName],
    by_value("text_or_object", "Input should be the id of a conversation, or an object with 'id'"),
]


class ContextManagement(Body):
    type: Literal["compaction"]
    compact_threshold: shared.PositiveCount | None = None
    """Tokens of the longest prompt that is not summarized. None for three quarters of the context."""


class TurnFields(Body):
    ignored: ClassVar[ignored_params.IgnoredParams] = ignored_params.RESPONSES_IGNORED
    unsupported: ClassVar[ignored_params.UnsupportedParams] = ignored_params.RESPONSES_UNSUPPORTED

    model: str | None = None
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: NamedConversation | None = None
    text: TextOptions | None = None
    tools: Annotated[list[_Tool], Field(max_length=shared.MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: _ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    reasoning: ReasoningOptions | None = None
    lora: shared.AdapterName | None = None
    enable_thinking: bool | None = None
    thinking_budget: shared.ThinkingBudget | None = None
    chat_template: str | None = None
    chat_template_kwargs: Annotated[JsonObject, Field(max_length=64)] | None = None

    @property
    def conversation_id(self) -> str | None:
        named = self.conversation
        return named.id if isinstance(named, ConversationName) else named

    @property
    def is_compacting(self) -> bool:
        last = self.input[-1] if isinstance(self.input, list) and self.input else None
        return isinstance(last, CompactionTrigger)


class InputTokensBody(TurnFields):
    def as_response(self) -> ResponsesBody:
        """Leave out fields outside this schema, which were not validated."""
        return ResponsesBody.model_construct(
            **{name: getattr(self, name) for name in type(self).model_fields}
        )


class ResponsesBody(shared.SharedBody, TurnFields):
    store: bool | None = None
    background: bool | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1)] | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_tool_calls: shared.PositiveCount | None = None
    """Counts calls of MCP tools."""
    max_output_tokens: shared.OutputLimit = None
    include: Annotated[list[str], Field(max_length=32, fail_fast=True)] | None = None
    top_logprobs: shared.TopLogprobs | None = None
    prompt_cache_key: str | None = None

    def compacting(self) -> ResponsesBody:
        items = self.input or []
        if isinstance(items, str):
            items = [SentMessageItem(role="user", content=items)]
        trigger = CompactionTrigger(type="compaction_trigger")
        alone = {"store": False, "stream": None, "background": None, "stream_options": None}
        alone["context_management"] = None
        return self.model_copy(update={"input": [*items, trigger], **alone})
