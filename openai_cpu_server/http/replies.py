"""Answers as JSON, and the parameters `limit`, `after` and `order` of listings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.jobs.records import PageQuery

ORDERS = ("asc", "desc")
PAGE_QUERY: Mapping[str, dict[str, object]] = {
    "limit": {"type": "integer", "minimum": 1},
    "after": {"type": "string", "description": "id of the last object that is known already"},
}


def json_response(
    value: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    body = msgspec.json.encode(value)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def page_of(query: QueryParams, *, known: frozenset[str], default: int, most: int) -> PageQuery:
    """Raises InvalidRequest for what is wrong or not in `known`."""
    for name in query:
        if name not in known:
            raise InvalidRequest(
                f"Unknown parameter: '{name[:64]}'.", param=name[:64], code="unknown_parameter"
            )
    return PageQuery(
        limit=_limit(query.get("limit"), default, most),
        after=query.get("after") or None,
        is_ascending=_is_ascending(query.get("order")),
    )


def _limit(text: str | None, default: int, most: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise _invalid("limit", f"a number from 1 to {most}")
    return int(text)


def _is_ascending(text: str | None) -> bool:
    if text not in (None, *ORDERS):
        raise _invalid("order", "'asc' or 'desc'")
    return text == "asc"


def _invalid(param: str, expected: str) -> InvalidRequest:
    message = f"Invalid value for '{param}': expected {expected}."
    return InvalidRequest(message, param=param, code="invalid_value")
