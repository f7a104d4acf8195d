from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import msgspec

from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.renderer import EndedBy
from openai_cpu_server.api.generation.resolve import served_tier
from openai_cpu_server.api.generation.schema import ForeignKind
from openai_cpu_server.api.responses import schema
from openai_cpu_server.api.responses.items import CompactionItem, MessageItem, OutputItem
from openai_cpu_server.api.state import ListPage
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.http.errors import ErrorObject
from openai_cpu_server.http.parse import Body
from openai_cpu_server.jobs.records import ResponseStatus


class ResponseInputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Always 0, because caching needs no request."""
    image_tokens: int | msgspec.UnsetType = msgspec.UNSET
    audio_tokens: int | msgspec.UnsetType = msgspec.UNSET
    audio_seconds: float | msgspec.UnsetType = msgspec.UNSET


class ResponseOutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int

    @classmethod
    def of(cls, figures: Figures) -> ResponseUsage:
        return cls(
            input_tokens=figures.prompt_tokens,
            input_tokens_details=ResponseInputDetails(
                figures.cached_tokens,
                image_tokens=figures.image_tokens or msgspec.UNSET,
                audio_tokens=figures.audio_tokens or msgspec.UNSET,
                audio_seconds=round(figures.audio_s, 3) or msgspec.UNSET,
            ),
            output_tokens=figures.output_tokens,
            output_tokens_details=ResponseOutputDetails(figures.thought_tokens),
            total_tokens=figures.total_tokens,
        )


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str
    ended_by: EndedBy = msgspec.UNSET


class ReasoningSettings(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class TextSettings(msgspec.Struct, frozen=True):
    format: msgspec.Raw
    verbosity: str = "medium"


class ConversationRef(msgspec.Struct, frozen=True):
    id: str


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    background: bool
    conversation: ConversationRef | msgspec.UnsetType = msgspec.UNSET
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: tuple[OutputItem, ...] = ()
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: TextSettings
    tool_choice: msgspec.Raw
    tools: tuple[msgspec.Raw, ...]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class WrittenSummary(msgspec.Struct, frozen=True):
    """Summary made on the way to a response, whose first item it is."""

    item: CompactionItem
    figures: Figures


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of users, and a summary of everything else."""

    id: str
    object: str = "response.compaction"
    created_at: int
    output: tuple[Union[MessageItem, CompactionItem], ...]
    usage: ResponseUsage | None


class ResponseDeleted(msgspec.Struct, frozen=True):
    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(ListPage[msgspec.Raw], frozen=True, kw_only=True):
    pass


SERVER_ERROR, _LIMIT = "server_error", "rate_limit_exceeded"
MAX_OUTPUT_TOKENS = "max_output_tokens"


def ended(
    response: ResponseObject,
    output: Sequence[OutputItem],
    usage: ResponseUsage,
    *,
    is_whole: bool,
    now_s: int,
    ended_by: EndedBy = msgspec.UNSET,
) -> ResponseObject:
    """`is_whole`: no limit of tokens cut the response. `ended_by`: reason of another end."""
    status = ResponseStatus.COMPLETED if is_whole else ResponseStatus.INCOMPLETE
    return msgspec.structs.replace(
        response,
        status=status.value,
        completed_at=now_s if is_whole else None,
        incomplete_details=None if is_whole else IncompleteDetails(MAX_OUTPUT_TOKENS, ended_by),
        output=tuple(output),
        usage=usage,
    )


def failed(response: ResponseObject, output: Sequence[OutputItem], error: ErrorObject) -> ResponseObject:
    """Keep the output so far, and use one of the few codes that OpenAI's clients know."""
    is_limit = error.error.code == _LIMIT
    return msgspec.structs.replace(
        response,
        status=ResponseStatus.FAILED.value,
        output=tuple(output),
        error=ResponseError(_LIMIT if is_limit else SERVER_ERROR, error.error.message),
    )


def cancelled(response: ResponseObject, output: Sequence[OutputItem]) -> ResponseObject:
    return msgspec.structs.replace(response, status=ResponseStatus.CANCELLED.value, output=tuple(output))


_TEXT = msgspec.Raw(b'{"type":"text"}')


def new_response(
    body: schema.ResponsesBody, call: ResolvedRequest, status: ResponseStatus, *, is_stored: bool
) -> ResponseObject:
    tier, text, reasoning, choice = body.service_tier, body.text, body.reasoning, body.tool_choice
    text_format = _TEXT if text is None or text.format is None else _raw(text.format)
    chosen = _raw(choice) if isinstance(choice, Body) else msgspec.Raw(msgspec.json.encode(choice or "auto"))
    summary = (reasoning.summary or reasoning.generate_summary) if reasoning else None
    return ResponseObject(
        id=call.id,
        created_at=call.created,
        status=status.value,
        background=bool(body.background),
        conversation=ConversationRef(named) if (named := body.conversation_id) else msgspec.UNSET,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens or call.default_limit,
        max_tool_calls=body.max_tool_calls,
        model=call.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningSettings(reasoning.effort if reasoning else None, summary),
        safety_identifier=body.safety_identifier,
        service_tier="default" if tier is None or tier == "auto" else served_tier(tier, call.priority),
        store=is_stored,
        temperature=call.requests[0].sampling.temperature,
        text=TextSettings(text_format, (text.verbosity if text else None) or "medium"),
        tool_choice=chosen,
        tools=tuple(_tool(tool) for tool in body.tools or () if not isinstance(tool, ForeignKind)),
        top_logprobs=body.top_logprobs or 0,
        top_p=call.requests[0].sampling.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        metadata=body.metadata or {},
    )


def _tool(
    tool: schema.FunctionTool | schema.TextTool | schema.NamespaceTool | schema.McpServerTool,
) -> msgspec.Raw:
    """Functions have all fields, as clients' types require. Secrets of MCP servers are left out."""
    if isinstance(tool, schema.McpServerTool):
        return _raw(tool.model_copy(update={"headers": None, "authorization": None}))
    if not isinstance(tool, schema.FunctionTool):
        return _raw(tool)
    return msgspec.Raw(msgspec.json.encode({**tool.model_dump(), "strict": bool(tool.strict)}))


def _raw(body: Body) -> msgspec.Raw:
    return msgspec.Raw(body.model_dump_json(by_alias=True, exclude_none=True).encode())
