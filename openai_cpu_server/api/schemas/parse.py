"""The bytes of a request become a checked body. What is wrong with them is an InvalidRequest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from openai_cpu_server.api.schemas.base import Body, unheeded
from openai_cpu_server.api.schemas.unheeded import Refusal
from openai_cpu_server.api.schemas.wrong_values import complaint
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.json_size import check_size

B = TypeVar("B", bound=Body)
MOST_NAMED = 32
"""So many ignored fields are named at most: a header has little room, and a conversation many messages."""


IGNORED = "x-ignored-parameters"


class Ignored(msgspec.Struct, frozen=True):
    """Paths of fields that were left out."""

    names: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        return {IGNORED: ",".join(self.names)} if self.names else {}


def parse(schema: type[B], data: bytes, *, lenient: bool) -> tuple[B, Ignored]:
    """`lenient`: fields that nobody knows are ignored as well as harmless ones.
    Raises InvalidRequest, TooManyValues."""
    check_size(data, most_numbers=schema.most_numbers)
    return _checked(partial(schema.model_validate_json, data), lenient=lenient)


def parse_fields(schema: type[B], fields: Mapping[str, object], *, lenient: bool) -> tuple[B, Ignored]:
    """The same with a part of a body that was parsed before. Raises InvalidRequest."""
    return _checked(partial(schema.model_validate, fields), lenient=lenient)


def _checked(validated: Callable[[], B], *, lenient: bool) -> tuple[B, Ignored]:
    try:
        body = validated()
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False)[0]) from None
    kinds: dict[str, None] = {}
    unknown: list[str] = []
    for field in unheeded(body):
        if field.refusal is not None:
            raise _not_supported(field.path, field.refusal)
        if not field.is_harmless:
            unknown.append(field.path)
        kinds[field.kind] = None
    if unknown and not lenient:
        raise _unknown(unknown)
    return body, Ignored(_named(list(kinds)))


def _named(kinds: list[str]) -> tuple[str, ...]:
    more = ("...",) if len(kinds) > MOST_NAMED else ()
    return (*map(header_safe, kinds[:MOST_NAMED]), *more)


def path_of(location: Sequence[int | str]) -> str | None:
    """`("messages", 0, "content", "<list>", 1, "type")` is `messages[0].content[1].type`.

    Parts in brackets are pydantic's: tags of unions, and `[key]` where a key is wrong, not its value.
    """
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith(("<", "[")):
            path += f".{part[:64]}" if path else part[:64]
    return path or None


def _invalid(error: ErrorDetails) -> InvalidRequest:
    if error["type"] == "json_invalid":
        why = error["msg"].removeprefix("Invalid JSON: ")
        return InvalidRequest(f"The request body is not valid JSON: {why}.", code="invalid_json")
    param = path_of(error["loc"])
    if param is None:
        return InvalidRequest("The request body must be a JSON object.", code="invalid_json")
    if error["type"] == "missing":
        message = f"Missing required parameter: '{param}'."
        return InvalidRequest(message, param=param, code="missing_required_parameter")
    wrong = complaint(param, error)
    return InvalidRequest(wrong.message, param=param, code=wrong.code)


def _unknown(names: Sequence[str]) -> InvalidRequest:
    listed = ", ".join(f"'{name}'" for name in names[:8])
    message = f"Unknown parameter: {listed}." if len(names) == 1 else f"Unknown parameters: {listed}."
    return InvalidRequest(message, param=names[0], code="unknown_parameter")


def header_safe(name: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() and c != "," else "?" for c in name[:128])


def _not_supported(path: str, refusal: Refusal) -> InvalidRequest:
    values = dict.fromkeys(json.dumps(value) for value in refusal.accepted)
    but = f" (accepted is only {' or '.join(values)})" if values else ""
    message = f"'{path[:128]}' is not supported: {refusal.why}{but}."
    return InvalidRequest(message, param=path, code="unsupported_parameter")
