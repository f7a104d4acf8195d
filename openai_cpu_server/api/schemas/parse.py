"""The bytes of a request become a checked body. Everything wrong with them is an InvalidRequest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from openai_cpu_server.api.schemas.base import Body, unknown_fields
from openai_cpu_server.api.schemas.wrong_values import complaint
from openai_cpu_server.errors import InvalidRequest

B = TypeVar("B", bound=Body)
NOT_YET: dict[str, tuple[object, ...]] = {
    # structured output
    "guided_whitespace_pattern": (),
    "guided_decoding_backend": (),
    # other media
    "modalities": (["text"],),
    "audio": (),
    # hints and services of OpenAI's own
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "verbosity": (),
    "moderation": (),
    "web_search_options": (),
    "store": (False,),
}
"""OpenAI's fields that this server does not honour yet. To build one, delete its line here.

The values listed beside a name are accepted, for they ask for nothing that would be missing.
"""


class Ignored(msgspec.Struct, frozen=True):
    """Paths of unknown fields that a lenient server leaves out."""

    names: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        return {"x-ignored-parameters": ",".join(self.names)} if self.names else {}


def parse(schema: type[B], data: bytes, *, lenient: bool) -> tuple[B, Ignored]:
    try:
        body = schema.model_validate_json(data)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False)[0]) from None
    _refuse_unsupported(body.extra)
    unknown = tuple(name for name in unknown_fields(body) if name not in NOT_YET)
    if unknown and not lenient:
        raise _unknown(unknown)
    return body, Ignored(tuple(header_safe(name) for name in unknown))


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


def _refuse_unsupported(fields: dict[str, object]) -> None:
    """Raises InvalidRequest for a field that is known and not done."""
    for name, value in fields.items():
        if name in NOT_YET and not any(type(no) is type(value) and no == value for no in NOT_YET[name]):
            raise _not_supported(name)


def _not_supported(name: str) -> InvalidRequest:
    accepted = " or ".join(json.dumps(value) for value in NOT_YET[name])
    but = f" (accepted is only {accepted})" if accepted else ""
    return InvalidRequest(
        f"'{name}' is not supported by this server{but}.", param=name, code="unsupported_parameter"
    )
