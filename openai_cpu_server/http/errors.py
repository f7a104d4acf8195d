from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Union

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response
from uvicorn.protocols.utils import ClientDisconnected

from openai_cpu_server import errors
from openai_cpu_server.jobs.records import PageQuery


class Failure(msgspec.Struct, frozen=True):
    status: int
    type: str
    code: str | None = None
    param: str | None = None
    may_retry: bool = True
    """False forbids retries in a header."""


CLIENT_GONE = 499
"""nginx's status, also for cancelled requests. SDKs do not retry it."""
TABLE: Mapping[type[errors.ServerError], Failure] = {
    errors.InvalidRequest: Failure(400, "invalid_request_error"),
    errors.PromptFarTooLong: Failure(400, "invalid_request_error", "context_length_exceeded"),
    errors.DeadlyInput: Failure(400, "invalid_request_error", "unreadable_input"),
    errors.PromptTooLong: Failure(400, "invalid_request_error", "context_length_exceeded"),
    errors.AdapterFailed: Failure(400, "invalid_request_error", "adapter_failed", "path"),
    errors.PullNotAllowed: Failure(400, "invalid_request_error", "pull_not_allowed"),
    errors.PullFailed: Failure(400, "invalid_request_error", "pull_failed", "model"),
    errors.InputTooLong: Failure(400, "invalid_request_error", "context_length_exceeded"),
    errors.WrongModelKind: Failure(400, "invalid_request_error", "wrong_model_kind", "model"),
    errors.RouterNotModel: Failure(400, "invalid_request_error", "wrong_model_kind", "model"),
    errors.TemplateFailed: Failure(400, "invalid_request_error", "chat_template_failed", "messages"),
    errors.ConstraintFailed: Failure(400, "invalid_request_error", "grammar_failed", may_retry=False),
    errors.Unauthorized: Failure(401, "invalid_request_error", "invalid_api_key"),
    errors.Forbidden: Failure(403, "invalid_request_error", "missing_scope"),
    errors.AdapterNotAllowed: Failure(403, "invalid_request_error", "adapter_not_allowed", "path"),
    errors.OriginRefused: Failure(403, "invalid_request_error", "origin_not_allowed"),
    errors.ModelNotFound: Failure(404, "invalid_request_error", "model_not_found", "model"),
    errors.AdapterNotFound: Failure(404, "invalid_request_error", "adapter_not_found", "model"),
    errors.RequestNotFound: Failure(404, "invalid_request_error", "request_not_found", "id"),
    errors.JobObjectNotFound: Failure(404, "invalid_request_error"),
    errors.McpServerNotFound: Failure(404, "invalid_request_error", "mcp_server_not_found", "name"),
    errors.BodyTooSlow: Failure(408, "invalid_request_error", "request_body_timeout"),
    errors.DeadlineExceeded: Failure(408, "server_error", "request_timeout", may_retry=False),
    errors.ReaderTooSlow: Failure(408, "server_error", "reader_too_slow"),
    errors.ModelInUse: Failure(409, "invalid_request_error", "model_in_use", "id", may_retry=False),
    errors.RequestEnded: Failure(409, "invalid_request_error", "request_ended", "id"),
    errors.NotThinking: Failure(409, "invalid_request_error", "not_thinking", "action"),
    errors.FileInUse: Failure(409, "invalid_request_error", "file_in_use", "id", may_retry=False),
    errors.BatchConflict: Failure(409, "invalid_request_error", "batch_conflict", "id", may_retry=False),
    errors.BodyTooLarge: Failure(413, "invalid_request_error", "request_too_large"),
    errors.EncodingNotSupported: Failure(415, "invalid_request_error", "unsupported_encoding"),
    errors.HostRefused: Failure(421, "invalid_request_error", "host_not_allowed"),
    errors.TooManyValues: Failure(413, "invalid_request_error", "too_many_values"),
    errors.RequestsLimited: Failure(429, "requests", "rate_limit_exceeded"),
    errors.TokensLimited: Failure(429, "tokens", "rate_limit_exceeded"),
    errors.CulpritsLimited: Failure(429, "requests", "too_many_crashes"),
    errors.QueueFull: Failure(429, "rate_limit_error", "queue_full"),
    errors.RequestCancelled: Failure(CLIENT_GONE, "server_error", "request_cancelled"),
    errors.EmbeddingFailed: Failure(500, "server_error", "generation_failed"),
    errors.GenerationFailed: Failure(500, "server_error", "generation_failed"),
    errors.NativePanic: Failure(500, "server_error", "internal_error", may_retry=False),
    errors.ReaderLost: Failure(500, "server_error", "reader_lost"),
    errors.ModelNotLoaded: Failure(503, "server_error", "model_not_loaded", may_retry=False),
    errors.ModelTooLarge: Failure(503, "server_error", "model_does_not_fit", "model", may_retry=False),
    errors.EngineUnavailable: Failure(503, "server_error", "engine_unavailable"),
    errors.AnswersUnavailable: Failure(503, "server_error", "answers_unavailable"),
    errors.JobsUnavailable: Failure(503, "server_error", "jobs_unavailable"),
    errors.DiskFull: Failure(503, "server_error", "disk_full"),
    errors.StorageFull: Failure(507, "invalid_request_error", "storage_quota_exceeded", may_retry=False),
    errors.BodiesFull: Failure(503, "server_error", "too_many_bodies"),
    errors.TooManyConnections: Failure(503, "server_error", "too_many_connections"),
    errors.TooManyWatchers: Failure(503, "server_error", "too_many_event_streams"),
    errors.ServerError: Failure(500, "server_error", "internal_error"),
}
"""SDKs would retry OpenAI's 408 for slow requests, so a header forbids it."""
INTERNAL = TABLE[errors.ServerError]
HTTP_CODES = {404: "unknown_url", 405: "method_not_allowed"}


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(msgspec.Struct, frozen=True):
    error: ErrorBody


def failure_of(error: Exception) -> Failure:
    if isinstance(error, HTTPException):
        return Failure(error.status_code, "invalid_request_error", HTTP_CODES.get(error.status_code))
    if isinstance(error, ClientDisconnected):  # before a WebSocket is open
        return Failure(CLIENT_GONE, "server_error", "client_gone")
    failure = next((TABLE[cls] for cls in type(error).__mro__ if cls in TABLE), INTERNAL)
    if failure is INTERNAL:
        return INTERNAL
    code, param = getattr(error, "code", None), getattr(error, "param", None)
    return msgspec.structs.replace(failure, code=failure.code or code, param=param or failure.param)


def is_internal(error: Exception) -> bool:
    """Decide whether details go to the log alone."""
    return failure_of(error).code == INTERNAL.code


def error_object(error: Exception, *, request_id: str) -> ErrorObject:
    failure = failure_of(error)
    if failure.code == INTERNAL.code:
        message = f"The server had an error while processing the request (request id {request_id})."
    else:
        message = error.detail if isinstance(error, HTTPException) else str(error)
    return ErrorObject(ErrorBody(message, failure.type, failure.param, failure.code))


def code_of(error: Exception) -> str:
    """Return the code, or else the type, both from a small set."""
    failure = failure_of(error)
    return failure.code or failure.type


class ErrorShape(msgspec.Struct, frozen=True):
    """Failures on one API's paths. Other paths use OpenAI's form."""

    prefixes: tuple[str, ...]
    response: Callable[[Exception, str], Response]
    id_headers: tuple[str, ...] = ("x-request-id",)


def _openai_response(error: Exception, request_id: str) -> Response:
    content = error_object(error, request_id=request_id)
    return json_response(content, failure_of(error).status, headers_of(error))


OPENAI = ErrorShape(("",), _openai_response)


class NumberedError(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    """HTTP status."""
    message: str
    type: str
    param: str | None
    n_prompt_tokens: Union[int, UnsetType] = UNSET
    n_ctx: Union[int, UnsetType] = UNSET
    """Set with `exceed_context_size_error`, for llama-server's clients."""


class NumberedErrorObject(msgspec.Struct, frozen=True):
    """`{"error": {"code", "message", "type", "param"}}`, as in llama-server."""

    error: NumberedError


_NUMBERED_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}
_STATUSES = {failure.code: failure.status for failure in TABLE.values() if failure.code is not None}


def status_of(body: ErrorBody) -> int:
    return _STATUSES.get(body.code or "", 400 if body.type == "invalid_request_error" else 500)


def numbered(
    sent: ErrorObject, status: int | None = None, error: Exception | None = None
) -> NumberedErrorObject:
    """`status`: None for the code's."""
    body = sent.error
    status = status or status_of(body)
    is_too_long = body.code == "context_length_exceeded"
    numbered_error = NumberedError(
        code=status,
        message=body.message,
        type="exceed_context_size_error" if is_too_long else _NUMBERED_TYPES.get(status, body.type),
        param=body.param,
    )
    if isinstance(error, (errors.PromptTooLong, errors.PromptFarTooLong, errors.InputTooLong)):
        numbered_error = msgspec.structs.replace(
            numbered_error, n_prompt_tokens=error.tokens, n_ctx=error.limit
        )
    return NumberedErrorObject(numbered_error)


def _numbered_response(error: Exception, request_id: str) -> Response:
    status = failure_of(error).status
    content = numbered(error_object(error, request_id=request_id), status, error)
    return json_response(content, status, headers_of(error))


def numbered_at(*prefixes: str) -> ErrorShape:
    return ErrorShape(prefixes, _numbered_response)


_CLOSE = {"connection": "close"}
"""The rest of the body is not read."""
_ALWAYS: Mapping[type[Exception], dict[str, str]] = {
    errors.BodyTooLarge: _CLOSE,
    errors.BodyTooSlow: _CLOSE,
    errors.EncodingNotSupported: {"accept-encoding": errors.EncodingNotSupported.READ, **_CLOSE},
    errors.Unauthorized: {"www-authenticate": "Bearer"},
    errors.TooManyConnections: _CLOSE,
    errors.BodiesFull: _CLOSE,
}


def headers_of(error: Exception) -> dict[str, str]:
    if isinstance(error, HTTPException):
        return dict(error.headers or {})
    match error:
        case errors.RateLimited(retry_after_s=None) | errors.GenerationFailed(may_retry=False):
            return {"x-should-retry": "false"}  # SDKs would send what kills the engine twice again
    if not failure_of(error).may_retry:
        return {"x-should-retry": "false"}
    headers: dict[str, str] = {}
    retry_after_s = getattr(error, "retry_after_s", None) if isinstance(error, errors.ServerError) else None
    if retry_after_s is not None:
        seconds = max(1.0, retry_after_s)  # whole ones for all clients, milliseconds for OpenAI's SDKs
        headers |= {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(1000 * seconds))}
    return {**headers, **_ALWAYS.get(type(error), {})}


ORDERS = ("asc", "desc")
PAGE_QUERY: Mapping[str, dict[str, object]] = {
    "limit": {"type": "integer", "minimum": 1},
    "after": {"type": "string", "description": "id of the last object of the previous page"},
}


def json_response(
    value: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    body = msgspec.json.encode(value)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def page_of(query: QueryParams, *, names: frozenset[str], default: int, most: int) -> PageQuery:
    """Check the query. Raises InvalidRequest, also for parameters that are not in `names`."""
    for name in query:
        if name not in names:
            raise errors.unknown_parameter(name)
    limit, order = query.get("limit", str(default)), query.get("order")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= most):
        raise errors.wrong_value("limit", f"a number from 1 to {most}")
    if order not in (None, *ORDERS):
        raise errors.wrong_value("order", "'asc' or 'desc'")
    return PageQuery(limit=int(limit), after=query.get("after") or None, is_ascending=order == "asc")
