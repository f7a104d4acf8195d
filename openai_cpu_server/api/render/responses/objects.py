"""The response object of the Responses API, whole as it is shown and stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import msgspec

from openai_cpu_server.api.errors import ErrorObject
from openai_cpu_server.api.render.responses.items import OutputItem
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.jobs.records import ResponseStatus


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Computed prompts are kept without being asked for, so nothing is counted here."""


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, figures: Figures) -> ResponseUsage:
        return cls(
            input_tokens=figures.prompt_tokens,
            input_tokens_details=InputDetails(figures.cached_tokens),
            output_tokens=figures.output_tokens,
            output_tokens_details=OutputDetails(figures.thought_tokens),
            total_tokens=figures.total_tokens,
        )


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class ReasoningSettings(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class TextSettings(msgspec.Struct, frozen=True):
    format: msgspec.Raw
    verbosity: str = "medium"


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    background: bool
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


class ResponseDeleted(msgspec.Struct, frozen=True):
    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: Sequence[msgspec.Raw]
    first_id: Union[str, None]
    last_id: Union[str, None]
    has_more: bool


SERVER_ERROR = "server_error"
MAX_OUTPUT_TOKENS = "max_output_tokens"


def begun(response: ResponseObject, status: ResponseStatus) -> ResponseObject:
    """The response while it waits or is made."""
    return msgspec.structs.replace(response, status=status.value)


def ended(
    response: ResponseObject,
    output: Sequence[OutputItem],
    figures: Figures,
    *,
    is_whole: bool,
    now_s: int,
) -> ResponseObject:
    """`is_whole`: it ended by itself, not for the want of tokens."""
    status = ResponseStatus.COMPLETED if is_whole else ResponseStatus.INCOMPLETE
    return msgspec.structs.replace(
        response,
        status=status.value,
        completed_at=now_s if is_whole else None,
        incomplete_details=None if is_whole else IncompleteDetails(MAX_OUTPUT_TOKENS),
        output=tuple(output),
        usage=ResponseUsage.of(figures),
    )


def failed(response: ResponseObject, output: Sequence[OutputItem], error: ErrorObject) -> ResponseObject:
    """The response with what there was of its output."""
    return msgspec.structs.replace(
        response,
        status=ResponseStatus.FAILED.value,
        output=tuple(output),
        error=ResponseError(error_code(error), error.error.message),
    )


def cancelled(response: ResponseObject, output: Sequence[OutputItem]) -> ResponseObject:
    return msgspec.structs.replace(response, status=ResponseStatus.CANCELLED.value, output=tuple(output))


def error_code(error: ErrorObject) -> str:
    """One of the few codes that OpenAI's clients know in a response."""
    return "rate_limit_exceeded" if error.error.code == "rate_limit_exceeded" else SERVER_ERROR
