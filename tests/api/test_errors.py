"""The error table: exact bodies, statuses and headers."""

from __future__ import annotations

import pytest
from inline_snapshot import external_file
from starlette.exceptions import HTTPException

from openai_cpu_server import errors
from openai_cpu_server.http.errors import OPENAI, TABLE

ERRORS = [
    errors.InvalidRequest("no", param="n", code="invalid_value"),
    errors.InvalidRequest("no"),
    errors.PromptTooLong(prompt_tokens=9, max_tokens=2, limit=10, param="prompt"),
    errors.InputTooLong(tokens=9, limit=8, param="input[2]"),
    errors.WrongModelKind("x", "embed", able=["y"]),
    errors.EmbeddingFailed("no"),
    errors.TemplateFailed("no"),
    errors.Unauthorized("no"),
    errors.Forbidden("admin"),
    errors.BodyTooSlow(),
    errors.DeadlineExceeded(5),
    errors.ReaderTooSlow(),
    errors.RequestsLimited("x", retry_after_s=3.5),
    errors.TokensLimited("x", retry_after_s=None),
    errors.TooManyConnections(),
    errors.BodiesFull(),
    errors.AnswersUnavailable(),
    errors.JobsUnavailable("the disk"),
    errors.ModelNotFound("x"),
    errors.RequestNotFound("x"),
    errors.BodyTooLarge(5),
    *(errors.QueueFull(3, retry_after_s=seconds) for seconds in (7, 7.25, 0.01)),
    errors.RequestCancelled("no"),
    errors.GenerationFailed("no"),
    errors.GenerationFailed("The server ends.", may_retry=True),
    errors.ConstraintFailed("no"),
    errors.EngineUnavailable("no"),
    errors.EngineUnavailable("no", retry_after_s=2),
    HTTPException(404, "no"),
    HTTPException(405, "no", headers={"Allow": "POST"}),
]


def test_every_error_has_its_recorded_response() -> None:
    """The record has the status, the headers and the bytes of the body."""
    record = ""
    for error in ERRORS:
        response = OPENAI.response(error, "r1")
        record += f"=== {type(error).__name__}\n\n{response.status_code}\n"
        record += "".join(f"{name}: {value}\n" for name, value in response.headers.items())
        record += f"\n{bytes(response.body).decode()}\n\n"
    assert record == external_file("errors.txt")


@pytest.mark.parametrize(
    "error", [KeyError("secret"), errors.ServerError("secret"), errors.StartupError("secret")]
)
def test_messages_of_internal_errors_are_not_sent(error: Exception) -> None:
    response = OPENAI.response(error, "r1")
    assert response.status_code == 500
    assert b"secret" not in response.body
    assert b"r1" in response.body


def test_every_error_is_in_the_table() -> None:
    """Base classes and errors of the start need no line."""
    classes = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.ServerError)}
    of_start = {e for e in classes if issubclass(e, errors.StartupError)}
    assert classes - of_start - {errors.RateLimited} == set(TABLE)
