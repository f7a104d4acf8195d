"""`/v1/files` and `/v1/batches`: jobs of many requests, whose rows run as HTTP requests do, at batch
priority, and their inputs and outputs."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from pydantic import Field
from starlette.datastructures import FormData, QueryParams, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from openai_cpu_server import errors
from openai_cpu_server.api.generation.schema import Notes
from openai_cpu_server.api.state import AppState, ListPage, page_ends, read_body, response_of
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.http.body import form_of, small_body
from openai_cpu_server.http.context import (
    Caller,
    RequestContext,
    RequestHistory,
    RequestLog,
    context_of,
    new_request_id,
)
from openai_cpu_server.http.errors import ORDERS, PAGE_QUERY, error_object, failure_of, json_response, page_of
from openai_cpu_server.http.keys import INFERENCE, UPLOADS, VISITOR, Identity, KeyRing, works_for
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.parse import Body, parse_fields
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, BatchHandler, JsonSchema
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import (
    NO_LIMITS,
    BatchRecord,
    FilePurpose,
    FileRecord,
    LineError,
    StoredAmount,
)
from openai_cpu_server.jobs.run.rows import RowAnswer
from openai_cpu_server.jobs.store.storage import StorageQuotas
from openai_cpu_server.observe.ended import RequestOrigin


@dataclass(frozen=True, kw_only=True)
class RowRunner:
    """Implements `jobs.rows.RunRow`. A batch outlives its request, so each row checks the current key.
    Rows do not count against rate limits, as at OpenAI, because they only use spare capacity. Beyond their
    own limit, or that of stored bytes, they wait."""

    routes: Mapping[str, BatchHandler]
    keys: KeyRing
    limits: RateLimits
    storage: StorageQuotas | None
    history: RequestHistory

    async def __call__(self, url: str, body: bytes, owner: str) -> RowAnswer:
        request_log = RequestLog(
            new_request_id(),
            "POST",
            url,
            url,
            origin=RequestOrigin.BATCH,
            client=owner or None,
            priority=Priority.BATCH,
            has_headers=False,
        )
        metrics = self.history.telemetry.metrics
        metrics.rows_running.inc()
        is_over = False
        try:
            answer = await self._answer(request_log, body, owner)
            is_over = answer.retry_after_s is None
        finally:
            if is_over:
                self.history.end(request_log)
            else:  # it is tried again, or a stop has cut it short
                metrics.count("batch_rows", "put_off")
            metrics.rows_running.dec()
        return answer

    async def _answer(self, request_log: RequestLog, body: bytes, owner: str) -> RowAnswer:
        try:
            key = self.keys.named(owner)
            if key is None and owner and not self.keys.is_open:
                raise errors.Unauthorized(f"The API key '{owner}' of this batch was deleted.")
            if self.storage is not None:
                limits = key.allowance.storage if key else NO_LIMITS
                await self.storage.check(owner, limits, StoredAmount(num_bytes=1))
            async with self.limits.row_reservation(key) as reservation:
                # The header overrides the row's body. Nothing records which machine sent a batch without key.
                identity = Identity(key or VISITOR, key.digest.hex() if key else None)
                context = RequestContext(request_log, Caller(identity, Priority.BATCH.label), reservation)
                works_for(context.identity)
                answer = await self.routes[request_log.path](body, context)
        except Exception as error:
            return _failed(error, request_log)
        request_log.status = 200
        return RowAnswer(status=200, request_id=request_log.id, body=answer)


def _failed(error: Exception, request_log: RequestLog) -> RowAnswer:
    failure = failure_of(error)
    request_log.failed(error)
    request_log.status = failure.status
    again, pauses = _again(error)
    return RowAnswer(
        status=failure.status,
        request_id=request_log.id,
        body=msgspec.json.encode(error_object(error, request_id=request_log.id)),
        retry_after_s=again,
        pauses=pauses,
    )


def _again(error: Exception) -> tuple[float | None, bool]:
    """Return the seconds until the next try, and True if all rows of the owner must wait."""
    match error:
        case errors.QueueFull() | errors.EngineUnavailable():
            return error.retry_after_s, False
        case errors.TokensLimited(retry_after_s=float(seconds)):
            return seconds, True
        case errors.CulpritsLimited():
            return error.retry_after_s, True
        case errors.StorageFull() | errors.DiskFull():
            return errors.DiskFull.retry_after_s, True
        case _:
            return None, False


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


_LISTED, _MAX_LISTED = 20, 100


class RequestCounts(msgspec.Struct, frozen=True):
    total: int
    completed: int
    failed: int


class BatchErrors(msgspec.Struct, frozen=True):
    data: list[LineError]
    object: str = "list"


class BatchInputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class BatchOutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over committed rows that did not fail."""

    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails = BatchOutputDetails()
    total_tokens: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "batch"
    endpoint: str
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(ListPage[BatchObject], frozen=True, kw_only=True):
    pass


_MAX_FILES_LISTED = 10_000


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


class FileMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """File as Anthropic's API shows it."""

    id: str
    type: str = "file"
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None
    downloadable: bool = True

    @classmethod
    def of(cls, record: FileRecord) -> FileMetadata:
        return cls(
            id=record.id,
            filename=record.filename,
            mime_type=mimetypes.guess_type(record.filename)[0] or "application/octet-stream",
            size_bytes=record.bytes,
            created_at=_rfc3339(record.created_at),
            expires_at=None if record.expires_at is None else _rfc3339(record.expires_at),
        )


class FileMetadataList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[FileMetadata]
    has_more: bool
    next_page: str | None


class FileDeletion(msgspec.Struct, frozen=True):
    """Deleted file as Anthropic's API shows it."""

    id: str
    type: str = "file_deleted"


class FileList(ListPage[FileObject], frozen=True, kw_only=True):
    pass


class FileDeleted(msgspec.Struct, frozen=True):
    id: str
    object: str = "file"
    deleted: bool = True


_PURPOSES = (FilePurpose.BATCH, FilePurpose.VISION, FilePurpose.USER_DATA, FilePurpose.ASSISTANTS)
_MOST_IDS, _MAX_METADATA_LISTED = 100, 1000
_PAGE = "page_"
"""Begins the name of a page of Anthropic's API; the id of the last file before it follows."""


async def uploaded(jobs: Jobs, owner: str, file_id: str, most_bytes: int) -> bytes:
    """Return an uploaded file, or `most_bytes` + 1 bytes of a larger one."""
    record = await jobs.files.get(owner, file_id)
    data = bytearray()
    async for part in _whole(jobs.files.content(record.id), record):
        data += part
        if len(data) > most_bytes:
            break
    return bytes(data[: most_bytes + 1])


_UPLOAD_FIELDS: JsonSchema = {
    "file": {"type": "string", "contentMediaType": "application/octet-stream"},
    "purpose": {"enum": [purpose.value for purpose in _PURPOSES]},
    "expires_after[anchor]": {"const": "created_at"},
    "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    "expires_in_seconds": {"type": "integer", "minimum": 3600, "maximum": 2592000},
}
"""The last one is Anthropic's, which has no purposes."""
_UPLOAD: JsonSchema = {
    "type": "object",
    "properties": _UPLOAD_FIELDS,
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
_file_route = partial(ApiRoute, access=INFERENCE, tag="Batches")
_FILE = (FileObject, FileMetadata)
_route = partial(_file_route, answer=BatchObject)


class BatchRoutes:
    def __init__(self, state: AppState) -> None:
        assert state.jobs is not None, "not served without"
        self._jobs = state.jobs
        self._models = state.models

    @_file_route("POST", "/v1/files", access=UPLOADS, form=_UPLOAD, answer=_FILE, errors=(400,))
    async def create_file(self, request: Request) -> Response:
        """Upload a file, such as the input of a batch."""
        self._models.check_not_ending()  # before the upload is read
        context = context_of(request.scope)
        owner, limits = context.owner, context.identity.storage
        await self._jobs.storage.check(owner, limits, StoredAmount(num_bytes=1, num_files=1))
        async with form_of(request, most_fields=16) as form:
            purpose = _purpose(form, is_needed=not _is_anthropics(request))
            upload, lifetime_s = form.get("file"), _lifetime_s(form)
            if not isinstance(upload, UploadFile):
                raise errors.missing("file")
            if not upload.size:
                raise errors.InvalidRequest("The file is empty.", param="file", code="empty_file")
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
        return json_response(_shown(request, record))

    @_file_route(
        "GET",
        "/v1/files",
        query={
            **PAGE_QUERY,
            "order": {"enum": list(ORDERS)},
            "purpose": {"type": "string"},
            "page": {"type": "string"},
            "ids[]": {"type": "array", "items": {"type": "string"}, "maxItems": _MOST_IDS},
        },
        answer=(FileList, FileMetadataList),
        errors=(404,),
    )
    async def list_files(self, request: Request) -> Response:
        """List the files. `page` and `ids[]` are those of Anthropic's API."""
        if _is_anthropics(request):
            return json_response(await self._metadata(request))
        names = frozenset({"limit", "after", "order", "purpose"})
        page = page_of(request.query_params, names=names, default=_MAX_FILES_LISTED, most=_MAX_FILES_LISTED)
        name = request.query_params.get("purpose")
        purpose = next((purpose for purpose in FilePurpose if purpose.value == name), None)
        if name is not None and purpose is None:
            return json_response(_listing([], has_more=False))  # other purposes have no files
        records, has_more = await self._jobs.files.page(context_of(request.scope).owner, page, purpose)
        return json_response(_listing(records, has_more=has_more))

    async def _metadata(self, request: Request) -> FileMetadataList:
        query, owner = request.query_params, context_of(request.scope).owner
        if ids := [*dict.fromkeys((*query.getlist("ids[]"), *query.getlist("ids")))]:
            if len(ids) > _MOST_IDS:
                raise errors.wrong_value("ids", f"at most {_MOST_IDS} ids")
            listed = list[FileMetadata]()
            for file_id in ids:
                with contextlib.suppress(errors.JobObjectNotFound):
                    listed.append(FileMetadata.of(await self._jobs.files.get(owner, file_id)))
            return FileMetadataList(data=listed, has_more=False, next_page=None)
        parameters = {name: value for name, value in query.items() if name != "beta"}
        if "page" in parameters:
            parameters["after"] = parameters.pop("page").removeprefix(_PAGE)
        names = frozenset({"limit", "after"})
        page = page_of(QueryParams(parameters), names=names, default=_LISTED, most=_MAX_METADATA_LISTED)
        records, has_more = await self._jobs.files.page(owner, page, None)
        next_page = f"{_PAGE}{records[-1].id}" if has_more else None
        return FileMetadataList(data=[*map(FileMetadata.of, records)], has_more=has_more, next_page=next_page)

    @_file_route("GET", "/v1/files/{id}", answer=_FILE)
    async def file(self, request: Request) -> Response:
        """Describe a file."""
        return json_response(_shown(request, await self._jobs.files.get(*_named(request))))

    @_file_route("DELETE", "/v1/files/{id}", answer=(FileDeleted, FileDeletion), errors=(409,))
    async def delete_file(self, request: Request) -> Response:
        """Delete a file."""
        owner, file_id = _named(request)
        await self._jobs.delete_file(owner, file_id)
        return json_response(FileDeletion(file_id) if _is_anthropics(request) else FileDeleted(file_id))

    @_file_route("GET", "/v1/files/{id}/content", media="application/octet-stream")
    async def content(self, request: Request) -> Response:
        """Return the content of a file."""
        record = await self._jobs.files.get(*_named(request))
        headers = {
            "content-length": str(record.bytes),
            "content-disposition": f"attachment; filename*=utf-8''{quote(record.filename, safe='')}",
        }
        content = _whole(self._jobs.files.content(record.id), record)
        return StreamingResponse(content, media_type="application/octet-stream", headers=headers)

    @_route("POST", "/v1/batches", body=BatchBody, errors=(404,))
    async def create(self, request: Request) -> Response:
        """Run the requests of a file while nothing else needs the machine."""
        self._models.check_not_ending()
        body, ignored, _ = await read_body(BatchBody, request, small_body)
        context = context_of(request.scope)
        lifetime = body.output_expires_after
        batch = await self._jobs.create_batch(
            context.owner,
            input_file_id=body.input_file_id,
            endpoint=body.endpoint,
            completion_window=body.completion_window,
            metadata=body.metadata,
            output_lifetime_s=lifetime.seconds if lifetime else None,
            limits=context.identity.storage,
        )
        return json_response(_batch_object(batch), headers=ignored.headers)

    @_route("GET", "/v1/batches", query=PAGE_QUERY, answer=BatchList, errors=(404,))
    async def list(self, request: Request) -> Response:
        """List the batches."""
        names = frozenset({"limit", "after"})
        page = page_of(request.query_params, names=names, default=_LISTED, most=_MAX_LISTED)
        batches, has_more = await self._jobs.batches.page(context_of(request.scope).owner, page)
        listed = [*map(_batch_object, batches)]
        return json_response(BatchList(data=listed, **page_ends(batches), has_more=has_more))

    @_route("GET", "/v1/batches/{id}")
    async def one(self, request: Request) -> Response:
        """Return a batch."""
        return json_response(_batch_object(await self._jobs.batches.get(*_named(request))))

    @_route("POST", "/v1/batches/{id}/cancel", errors=(409,))
    async def cancel(self, request: Request) -> Response:
        """Cancel a batch."""
        return json_response(_batch_object(await self._jobs.cancel_batch(*_named(request))))


def _named(request: Request) -> tuple[str, str]:
    return context_of(request.scope).owner, request.path_params["id"]


def _batch_object(batch: BatchRecord) -> BatchObject:
    return response_of(
        BatchObject,
        batch,
        errors=BatchErrors(batch.errors) if batch.errors else None,
        request_counts=response_of(RequestCounts, batch),
        usage=BatchUsage(
            input_tokens=batch.input_tokens,
            input_tokens_details=BatchInputDetails(batch.cached_tokens),
            output_tokens=batch.output_tokens,
            total_tokens=batch.input_tokens + batch.output_tokens,
        ),
    )


def _is_anthropics(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _shown(request: Request, record: FileRecord) -> FileObject | FileMetadata:
    return FileMetadata.of(record) if _is_anthropics(request) else response_of(FileObject, record)


def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _listing(records: list[FileRecord], *, has_more: bool) -> FileList:
    data = [response_of(FileObject, record) for record in records]
    return FileList(data=data, **page_ends(records), has_more=has_more)


async def _whole(content: AsyncIterator[bytes], record: FileRecord) -> AsyncIterator[bytes]:
    """The file may be deleted while it is read. Raises JobObjectNotFound."""
    left = record.bytes
    async for part in content:
        left -= len(part)
        yield part
    if left:
        raise errors.JobObjectNotFound(f"The file '{record.id}' was deleted while it was read.")


def _purpose(form: FormData, *, is_needed: bool) -> FilePurpose:
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


def _lifetime_s(form: FormData) -> int | None:
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


ROUTER = ApiRouter[AppState](BatchRoutes, is_served=lambda state: state.jobs is not None)
