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
from openai_cpu_server.api.parts import AppState, ListPage, page_ends
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
from openai_cpu_server.http.parse import parse
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, JsonSchema
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import FilePurpose, FileRecord, StoredAmount
from openai_cpu_server.models.registry import ModelRegistry

_FIELDS = frozenset({"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"})
_MAX_FIELDS = 16
_MAX_LISTED = 10_000
_MAX_NAME_CHARS = 255


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
    record = await jobs.files.get(owner, file_id)
    data = bytearray()
    async for part in _whole(jobs.files.content(record.id), record):
        data += part
        if len(data) > most_bytes:
            break
    return bytes(data[: most_bytes + 1])


class FileRoutes:
    def __init__(self, jobs: Jobs, models: ModelRegistry) -> None:
        self._jobs = jobs
        self._models = models

    async def create(self, request: Request) -> Response:
        self._models.check_not_ending()  # before it is read: nobody waits for the end of an upload
        context = context_of(request.scope)
        owner, limits = context.owner, context.identity.storage
        await self._jobs.storage.check(owner, limits, StoredAmount(num_bytes=1, num_files=1))
        async with form_of(request, most_fields=_MAX_FIELDS) as form:
            purpose = _purpose(form)
            upload, lifetime_s = form.get("file"), _lifetime_s(form)
            if not isinstance(upload, UploadFile):
                raise missing("file")
            if not upload.size:
                raise InvalidRequest("The file is empty.", param="file", code="empty_file")
            name = (upload.filename or "upload")[:_MAX_NAME_CHARS]
            # Shielded: a client that leaves must not close the file that the database is reading.
            adding = self._jobs.add_file(
                owner,
                name,
                upload.file,
                purpose=purpose,
                num_bytes=upload.size,
                limits=limits,
                lifetime_s=lifetime_s,
            )
            record = await _to_the_end(asyncio.ensure_future(adding))
        return json_response(_file_object(record))

    async def list(self, request: Request) -> Response:
        known = frozenset({"limit", "after", "order", "purpose"})
        page = page_of(request.query_params, known=known, default=_MAX_LISTED, most=_MAX_LISTED)
        asked = request.query_params.get("purpose")
        purpose = next((purpose for purpose in FilePurpose if purpose.value == asked), None)
        if asked is not None and purpose is None:
            return json_response(_listing([], has_more=False))  # there is no file of another purpose
        records, has_more = await self._jobs.files.page(context_of(request.scope).owner, page, purpose)
        return json_response(_listing(records, has_more=has_more))

    async def one(self, request: Request) -> Response:
        return json_response(_file_object(await self._record(request)))

    async def content(self, request: Request) -> Response:
        record = await self._record(request)
        headers = {
            "content-length": str(record.bytes),
            "content-disposition": f"attachment; filename*=utf-8''{quote(record.filename, safe='')}",
        }
        content = _whole(self._jobs.files.content(record.id), record)
        return StreamingResponse(content, media_type="application/octet-stream", headers=headers)

    async def delete(self, request: Request) -> Response:
        file_id: str = request.path_params["id"]
        await self._jobs.delete_file(context_of(request.scope).owner, file_id)
        return json_response(FileDeleted(file_id))

    async def _record(self, request: Request) -> FileRecord:
        return await self._jobs.files.get(context_of(request.scope).owner, request.path_params["id"])


def _file_object(record: FileRecord) -> FileObject:
    return FileObject(
        id=record.id,
        bytes=record.bytes,
        created_at=record.created_at,
        expires_at=record.expires_at,
        filename=record.filename,
        purpose=record.purpose.value,
    )


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


async def _to_the_end(adding: asyncio.Future[FileRecord]) -> FileRecord:
    try:
        return await asyncio.shield(adding)
    finally:
        await asyncio.wait([adding])


def _purpose(form: FormData) -> FilePurpose:
    unknown = next((name for name in form if name not in _FIELDS), None)
    if unknown is not None:
        raise unknown_parameter(unknown)
    purpose = form.get("purpose")
    if purpose is None:
        raise missing("purpose")
    found = next((one for one in _PURPOSES if one.value == purpose), None)
    if found is None:
        shown, known = purpose[:64] if isinstance(purpose, str) else "a file", [p.value for p in _PURPOSES]
        message = f"Invalid value for 'purpose': {shown!r} is not supported by this server, {known} are."
        raise wrong(message, "purpose")
    return found


def _lifetime_s(form: FormData) -> int | None:
    """The SDK sends `expires_after` as one form field per part."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if not (isinstance(seconds, str) and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10):
        raise wrong_value("expires_after.seconds", "a number")
    given = msgspec.json.encode({"anchor": anchor, "seconds": int(seconds)})
    try:
        return parse(ExpiresAfter, given, lenient=False)[0].seconds
    except InvalidRequest as error:
        raise InvalidRequest(
            str(error).replace("'" + str(error.param), f"'expires_after.{error.param}", 1),
            param=f"expires_after.{error.param}",
            code=error.code,
        ) from None


_UPLOAD: JsonSchema = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"const": "batch"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
_row = partial(ApiRoute[FileRoutes], access=INFERENCE, tag="Batches")
_rows = (
    _row(
        "POST",
        "/v1/files",
        lambda at: at.create,
        access=UPLOADS,
        summary="Upload the input of a batch",
        form=_UPLOAD,
        answer=FileObject,
        errors=(400,),
    ),
    _row(
        "GET",
        "/v1/files",
        lambda at: at.list,
        summary="Files",
        query={**PAGE_QUERY, "order": {"enum": list(ORDERS)}, "purpose": {"type": "string"}},
        answer=FileList,
        errors=(404,),
    ),
    _row("GET", "/v1/files/{id}", lambda at: at.one, summary="One file", answer=FileObject),
    _row(
        "DELETE",
        "/v1/files/{id}",
        lambda at: at.delete,
        summary="Delete it",
        answer=FileDeleted,
        errors=(409,),
    ),
    _row(
        "GET",
        "/v1/files/{id}/content",
        lambda at: at.content,
        summary="Its bytes",
        media="application/octet-stream",
    ),
)
ROOM = ApiRouter[AppState, FileRoutes](
    lambda parts: FileRoutes(parts.jobs, parts.models) if parts.jobs is not None else None, _rows
)
