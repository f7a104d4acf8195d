"""The error table: exact bodies, statuses and headers."""

from __future__ import annotations

import json

import pytest
from starlette.exceptions import HTTPException

from openai_cpu_server import errors
from openai_cpu_server.http.errors import TABLE, error_response

BAD = "invalid_request_error"
LONG_PROMPT = errors.PromptTooLong(prompt_tokens=9, max_tokens=2, limit=10, param="prompt")


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (errors.InvalidRequest("no", param="n", code="invalid_value"), 400, BAD, "n", "invalid_value"),
        (errors.InvalidRequest("no"), 400, BAD, None, None),
        (LONG_PROMPT, 400, BAD, "prompt", "context_length_exceeded"),
        (errors.InputTooLong(tokens=9, limit=8, param="x"), 400, BAD, "x", "context_length_exceeded"),
        (errors.WrongModelKind("x", "embed", able=["y"]), 400, BAD, "model", "wrong_model_kind"),
        (errors.EmbeddingFailed("no"), 500, "server_error", None, "generation_failed"),
        (errors.TemplateFailed("no"), 400, BAD, "messages", "chat_template_failed"),
        (errors.Unauthorized("no"), 401, BAD, None, "invalid_api_key"),
        (errors.Forbidden("admin"), 403, BAD, None, "missing_scope"),
        (errors.BodyTooSlow(), 408, BAD, None, "request_body_timeout"),
        (errors.DeadlineExceeded(5), 408, "server_error", None, "request_timeout"),
        (errors.ReaderTooSlow(), 408, "server_error", None, "reader_too_slow"),
        (errors.RequestsLimited("x", retry_after_s=1), 429, "requests", None, "rate_limit_exceeded"),
        (errors.TokensLimited("x", retry_after_s=None), 429, "tokens", None, "rate_limit_exceeded"),
        (errors.TooManyConnections(), 503, "server_error", None, "too_many_connections"),
        (errors.BodiesFull(), 503, "server_error", None, "too_many_bodies"),
        (errors.AnswersUnavailable(), 503, "server_error", None, "answers_unavailable"),
        (errors.JobsUnavailable("the disk"), 503, "server_error", None, "jobs_unavailable"),
        (errors.ModelNotFound("x"), 404, BAD, "model", "model_not_found"),
        (errors.RequestNotFound("x"), 404, BAD, "id", "request_not_found"),
        (HTTPException(404, "no"), 404, BAD, None, "unknown_url"),
        (HTTPException(405, "no"), 405, BAD, None, "method_not_allowed"),
        (errors.BodyTooLarge(5), 413, BAD, None, "request_too_large"),
        (errors.QueueFull(3, retry_after_s=7), 429, "rate_limit_error", None, "queue_full"),
        (errors.RequestCancelled("no"), 499, "server_error", None, "request_cancelled"),
        (errors.GenerationFailed("no"), 500, "server_error", None, "generation_failed"),
        (errors.EngineUnavailable("no"), 503, "server_error", None, "engine_unavailable"),
    ],
)
def test_every_failure_has_its_status_and_object(
    error: Exception, status: int, kind: str, param: str | None, code: str | None
) -> None:
    response = error_response(error, request_id="r1")
    message = error.detail if isinstance(error, HTTPException) else str(error)
    assert response.status_code == status
    assert json.loads(response.body) == {
        "error": {"message": message, "type": kind, "param": param, "code": code}
    }


def test_the_bytes_are_openais() -> None:
    error = errors.InvalidRequest("Too big.", param="n", code="invalid_value")
    response = error_response(error, request_id="r1")
    assert response.body == (
        b'{"error":{"message":"Too big.","type":"invalid_request_error","param":"n","code":"invalid_value"}}'
    )
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "error", [KeyError("secret"), errors.ServerError("secret"), errors.StartupError("secret")]
)
def test_what_is_ours_alone_is_not_told(error: Exception) -> None:
    response = error_response(error, request_id="r1")
    assert response.status_code == 500
    assert b"secret" not in response.body
    assert b"r1" in response.body


@pytest.mark.parametrize(
    ("error", "header", "value"),
    [
        (errors.QueueFull(3, retry_after_s=7), "retry-after", "7"),
        (errors.QueueFull(3, retry_after_s=7.25), "retry-after", "8"),
        (errors.QueueFull(3, retry_after_s=7.25), "retry-after-ms", "7250"),
        (errors.QueueFull(3, retry_after_s=0.01), "retry-after-ms", "1000"),
        (errors.RequestsLimited("x", retry_after_s=3.5), "retry-after", "4"),
        (errors.TokensLimited("x", retry_after_s=None), "x-should-retry", "false"),
        (errors.DeadlineExceeded(5), "x-should-retry", "false"),
        (errors.GenerationFailed("no"), "x-should-retry", "false"),
        (errors.ConstraintFailed("no"), "x-should-retry", "false"),
        (errors.JobsUnavailable("the disk"), "retry-after", "10"),
        (errors.TooManyConnections(), "connection", "close"),
        (errors.BodiesFull(), "connection", "close"),
        (errors.BodiesFull(), "retry-after", "1"),
        (errors.BodyTooSlow(), "connection", "close"),
        (errors.EngineUnavailable("no", retry_after_s=2), "retry-after", "2"),
        (errors.Unauthorized("no"), "www-authenticate", "Bearer"),
        (HTTPException(405, headers={"Allow": "POST"}), "allow", "POST"),
    ],
)
def test_headers_say_what_to_do(error: Exception, header: str, value: str) -> None:
    assert error_response(error, request_id="r1").headers[header] == value


def test_what_a_shutdown_ends_may_be_sent_again() -> None:
    response = error_response(errors.GenerationFailed("The server ends.", may_retry=True), request_id="r1")
    assert "x-should-retry" not in response.headers


def test_no_failure_is_forgotten() -> None:
    """A new exception in `errors.py` needs a line in the table, but for bases and what ends the start."""
    named = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.ServerError)}
    ends_start = {e for e in named if issubclass(e, errors.StartupError)}
    assert named - ends_start - {errors.RateLimited} == set(TABLE)
