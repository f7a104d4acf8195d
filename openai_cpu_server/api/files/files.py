"""`/v1/files`: uploaded inputs and written outputs of batch jobs, in OpenAI's format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from urllib.parse import quote

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from openai_cpu_server.api.files.batches import ExpiresAfter
from openai_cpu_server.api.parts import AppState, ListPage, page_ends, response_of
from openai_cpu_server.errors import (
    InvalidRequest,
    JobObjectNotFound,
    missing,
    unknown_parameter,
    wrong,
    wrong_value,
)
from openai_cpu_server.http.body import form_of
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import ORDERS, PAGE_QUERY, json_response, page_of
from openai_cpu_server.http.keys import INFERENCE, UPLOADS
from openai_cpu_server.http.parse import parse_fields
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, JsonSchema
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import FilePurpose, FileRecord, StoredAmount

_MAX_LISTED = 10_000


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str = "processed"
    status_details: None = None


class FileList(ListPage[FileObject], frozen=True, kw_only=True):
    pass


class FileDeleted(msgspec.Struct, frozen=True):
    id: str
    object: str = "file"
    deleted: bool = True


_PURPOSES = (FilePurpose.BATCH, FilePurpose.VISION, FilePurpose.USER_DATA)


async def uploaded(jobs: Jobs, owner: str, file_id: str, most_bytes: int) -> bytes:
    """Return an uploaded file, or `most_bytes` + 1 bytes of a larger one. Raises JobObjectNotFound."""
    record = await jobs.file(owner, file_id)
    data = bytearray()
    async for part in _whole(jobs.content(record), record):
        data += part
        if len(data) > most_bytes:
            break
    return bytes(data[: most_bytes + 1])


_UPLOAD_FIELDS: JsonSchema = {
    "file": {"type": "string", "contentMediaType": "application/octet-stream"},
    "purpose": {"const": "batch"},
    "expires_after[anchor]": {"const": "created_at"},
    "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
}
_UPLOAD: JsonSchema = {
    "type": "object",
    "properties": _UPLOAD_FIELDS,
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
_route = partial(ApiRoute, access=INFERENCE, tag="Batches")


class FileRoutes:
    def __init__(self, parts: AppState) -> None:
        assert parts.jobs is not None, "not served without"
        self._jobs = parts.jobs
        self._models = parts.models

    @_route("POST", "/v1/files", access=UPLOADS, form=_UPLOAD, answer=FileObject, errors=(400,))
    async def create(self, request: Request) -> Response:
        """Upload a file, such as the input of a batch."""
        self._models.check_not_ending()  # before it is read: nobody waits for the end of an upload
        context = context_of(request.scope)
        owner, limits = context.owner, context.identity.storage
        await self._jobs.storage.check(owner, limits, StoredAmount(num_bytes=1, num_files=1))
        async with form_of(request, most_fields=16) as form:
            purpose = _purpose(form)
            upload, lifetime_s = form.get("file"), _lifetime_s(form)
            if not isinstance(upload, UploadFile):
                raise missing("file")
            if not upload.size:
                raise InvalidRequest("The file is empty.", param="file", code="empty_file")
            name = (upload.filename or "upload")[:255]
            adding = asyncio.ensure_future(
                self._jobs.add_file(
                    owner,
                    name,
                    upload.file,
                    purpose=purpose,
                    num_bytes=upload.size,
                    limits=limits,
                    lifetime_s=lifetime_s,
                )
            )
            try:
                record = await asyncio.shield(adding)
            finally:  # a client that leaves must not close the file that the database is reading
                await asyncio.wait([adding])
        return json_response(_file_object(record))

    @_route(
        "GET",
        "/v1/files",
        query={**PAGE_QUERY, "order": {"enum": list(ORDERS)}, "purpose": {"type": "string"}},
        answer=FileList,
        errors=(404,),
    )
    async def list(self, request: Request) -> Response:
        """List the files."""
        names = frozenset({"limit", "after", "order", "purpose"})
        page = page_of(request.query_params, names=names, default=_MAX_LISTED, most=_MAX_LISTED)
        name = request.query_params.get("purpose")
        purpose = next((purpose for purpose in FilePurpose if purpose.value == name), None)
        if name is not None and purpose is None:
            return json_response(_listing([], has_more=False))  # there is no file of another purpose
        records, has_more = await self._jobs.list_files(context_of(request.scope).owner, page, purpose)
        return json_response(_listing(records, has_more=has_more))

    @_route("GET", "/v1/files/{id}", answer=FileObject)
    async def one(self, request: Request) -> Response:
        """Describe a file."""
        return json_response(_file_object(await self._record(request)))

    @_route("DELETE", "/v1/files/{id}", answer=FileDeleted, errors=(409,))
    async def delete(self, request: Request) -> Response:
        """Delete a file."""
        file_id: str = request.path_params["id"]
        await self._jobs.delete_file(context_of(request.scope).owner, file_id)
        return json_response(FileDeleted(file_id))

    @_route("GET", "/v1/files/{id}/content", media="application/octet-stream")
    async def content(self, request: Request) -> Response:
        """Return the content of a file."""
        record = await self._record(request)
        headers = {
            "content-length": str(record.bytes),
            "content-disposition": f"attachment; filename*=utf-8''{quote(record.filename, safe='')}",
        }
        content = _whole(self._jobs.content(record), record)
        return StreamingResponse(content, media_type="application/octet-stream", headers=headers)

    async def _record(self, request: Request) -> FileRecord:
        return await self._jobs.file(context_of(request.scope).owner, request.path_params["id"])


def _file_object(record: FileRecord) -> FileObject:
    return response_of(FileObject, record, purpose=record.purpose.value)


def _listing(records: list[FileRecord], *, has_more: bool) -> FileList:
    return FileList(data=[*map(_file_object, records)], **page_ends(records), has_more=has_more)


async def _whole(content: AsyncIterator[bytes], record: FileRecord) -> AsyncIterator[bytes]:
    """The file may be deleted while it is read. Raises JobObjectNotFound."""
    left = record.bytes
    async for part in content:
        left -= len(part)
        yield part
    if left:
        raise JobObjectNotFound(f"The file '{record.id}' was deleted while it was read.")


def _purpose(form: FormData) -> FilePurpose:
    for name in form:
        if name not in _UPLOAD_FIELDS:
            raise unknown_parameter(name)
    purpose = form.get("purpose")
    if purpose is None:
        raise missing("purpose")
    found = next((one for one in _PURPOSES if one.value == purpose), None)
    if found is None:
        shown, names = purpose[:64] if isinstance(purpose, str) else "a file", [p.value for p in _PURPOSES]
        message = f"Invalid value for 'purpose': {shown!r} is not supported by this server, {names} are."
        raise wrong(message, "purpose")
    return found


def _lifetime_s(form: FormData) -> int | None:
    """The SDK sends `expires_after` as one form field per part."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if not (isinstance(seconds, str) and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10):
        raise wrong_value("expires_after.seconds", "a number")
    fields = {"anchor": anchor, "seconds": int(seconds)}
    try:
        return parse_fields(ExpiresAfter, fields, lenient=False)[0].seconds
    except InvalidRequest as error:
        raise InvalidRequest(
            str(error).replace("'" + str(error.param), f"'expires_after.{error.param}", 1),
            param=f"expires_after.{error.param}",
            code=error.code,
        ) from None


ROOM = ApiRouter[AppState](FileRoutes, is_served=lambda parts: parts.jobs is not None)
