"""What a failure looks like on the paths of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from openai_cpu_server.http.errors import (
    CLIENT_GONE,
    TABLE,
    ErrorBody,
    ErrorObject,
    ErrorShape,
    error_object,
    failure_of,
    headers_of,
)

MESSAGES = "/v1/messages"
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    CLIENT_GONE: "api_error",
    500: "api_error",
    503: "overloaded_error",
}
"""Anthropic's words by our statuses. All others mean that the request is wrong."""
_STATUSES = {failure.code: failure.status for failure in TABLE.values() if failure.code is not None}
_TOO_LONG = "context_length_exceeded"


class MessagesErrorBody(msgspec.Struct, frozen=True):
    type: str
    message: str


class MessagesError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    error: MessagesErrorBody
    request_id: str | None = None
    """None: in a stream, whose headers have it."""


def streamed_error(error: ErrorObject) -> MessagesError:
    """The same in the middle of a stream, which has no status: its code tells what that would be."""
    otherwise = 400 if error.error.type == "invalid_request_error" else 500
    return MessagesError(type="error", error=_body(error, _STATUSES.get(error.error.code or "", otherwise)))


def _body(said: ErrorObject, status: int) -> MessagesErrorBody:
    return MessagesErrorBody(_TYPES.get(status, "invalid_request_error"), _words(said.error))


def _words(said: ErrorBody) -> str:
    """Claude Code shortens a conversation when a message begins with Anthropic's words for one too long."""
    if said.code == _TOO_LONG:
        return f"prompt is too long: {said.message}"
    is_named = said.param is None or said.param in said.message
    return said.message if is_named else f"{said.param}: {said.message}"


def _response(error: Exception, request_id: str) -> Response:
    status, said = failure_of(error).status, error_object(error, request_id=request_id)
    body = MessagesError(type="error", error=_body(said, status), request_id=request_id)
    return Response(msgspec.json.encode(body), status, headers_of(error), media_type="application/json")


SHAPE = ErrorShape(MESSAGES, _response, ("x-request-id", "request-id"))
"""Anthropic's SDKs read only their own name of the id."""
