"""Errors that clients see, from the table of errors."""

from __future__ import annotations

import inspect
from http import HTTPStatus

from manual.table import table
from openai_cpu_server.errors import ServerError
from openai_cpu_server.http.errors import HTTP_CODES, TABLE, Failure

_UNFORESEEN = "The server had an error of its own. The log has the details under the request id."


def error_table() -> str:
    meanings = {error: " ".join((inspect.getdoc(error) or "").split()) for error in TABLE}
    meanings[ServerError] = _UNFORESEEN
    rows = [_row(failure, meanings[error]) for error, failure in TABLE.items()]
    rows += [
        _row(Failure(status, "invalid_request_error", code), f"{HTTPStatus(status).phrase}.")
        for status, code in HTTP_CODES.items()
    ]
    return table(("Status", "`code`", "`type`", "Meaning"), sorted(rows))


def _row(failure: Failure, meaning: str) -> tuple[str, str, str, str]:
    code = f"`{failure.code}`" if failure.code else "depends on the field"
    return str(failure.status), code, f"`{failure.type}`", meaning
