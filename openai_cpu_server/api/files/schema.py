"""Bodies of `/v1/batches`, and the form of an upload to `/v1/files`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from starlette.datastructures import FormData

from openai_cpu_server import errors
from openai_cpu_server.api.generation.schema import Notes
from openai_cpu_server.http.parse import Body, parse_fields
from openai_cpu_server.http.routes import JsonSchema
from openai_cpu_server.jobs.records import FilePurpose

Lifetime = Annotated[int, Field(ge=3600, le=2592000)]


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Lifetime


class BatchBody(Body):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Notes | None = None
    output_expires_after: ExpiresAfter | None = None


_PURPOSES = (FilePurpose.BATCH, FilePurpose.VISION, FilePurpose.USER_DATA, FilePurpose.ASSISTANTS)
_UPLOAD_FIELDS: JsonSchema = {
    "file": {"type": "string", "contentMediaType": "application/octet-stream"},
    "purpose": {"enum": [purpose.value for purpose in _PURPOSES]},
    "expires_after[anchor]": {"const": "created_at"},
    "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    "expires_in_seconds": {"type": "integer", "minimum": 3600, "maximum": 2592000},
}
"""The last one is Anthropic's, which has no purposes."""
UPLOAD_FORM: JsonSchema = {
    "type": "object",
    "properties": _UPLOAD_FIELDS,
    "required": ["file", "purpose"],
    "additionalProperties": False,
}


def purpose_of(form: FormData, *, is_needed: bool) -> FilePurpose:
    names = [name for name, _ in form.multi_items()]
    for name in names:
        if name not in _UPLOAD_FIELDS:
            raise errors.unknown_parameter(name)
        if names.count(name) > 1:
            raise errors.wrong(f"The form has '{name}' more than once.", name)
    purpose = form.get("purpose")
    if purpose is None and not is_needed:
        return FilePurpose.USER_DATA
    if purpose is None:
        raise errors.missing("purpose")
    found = next((one for one in _PURPOSES if one.value == purpose), None)
    if found is None:
        shown, names = purpose[:64] if isinstance(purpose, str) else "a file", [p.value for p in _PURPOSES]
        message = f"Invalid value for 'purpose': {shown!r} is not supported by this server, {names} are."
        raise errors.wrong(message, "purpose")
    return found


def lifetime_of(form: FormData) -> int | None:
    """The SDK sends `expires_after` as one form field per part."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    path, alone = "expires_after.seconds", form.get("expires_in_seconds")
    if alone is not None:
        path, anchor, seconds = "expires_in_seconds", "created_at", alone
    if anchor is None and seconds is None:
        return None
    if not (isinstance(seconds, str) and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10):
        raise errors.wrong_value(path, "a number")
    fields = {"anchor": anchor, "seconds": int(seconds)}
    try:
        return parse_fields(ExpiresAfter, fields, lenient=False)[0].seconds
    except errors.InvalidRequest as error:
        param = path if alone is not None else f"expires_after.{error.param}"
        message = str(error).replace("'" + str(error.param), f"'{param}", 1)
        raise errors.InvalidRequest(message, param=param, code=error.code) from None
