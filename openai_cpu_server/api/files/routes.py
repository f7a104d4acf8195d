"""Routes of `/v1/files` and `/v1/batches`: jobs of many requests, their inputs and outputs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from urllib.parse import quote

from starlette.datastructures import QueryParams, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from openai_cpu_server import errors
from openai_cpu_server.api.files.render import (
    BatchList,
    BatchObject,
    FileDeleted,
    FileDeletion,
    FileList,
    FileMetadata,
    FileMetadataList,
    FileObject,
    batch_object,
    file_list,
)
from openai_cpu_server.api.files.schema import UPLOAD_FORM, BatchBody, lifetime_of, purpose_of
from openai_cpu_server.api.state import AppState, page_ends, read_body, response_of
from openai_cpu_server.http.body import form_of, small_body
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import ORDERS, PAGE_QUERY, json_response, page_of
from openai_cpu_server.http.keys import INFERENCE, UPLOADS
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import FilePurpose, FileRecord, StoredAmount

_LISTED, _MAX_LISTED = 20, 100
_MAX_FILES_LISTED = 10_000
_MOST_IDS, _MAX_METADATA_LISTED = 100, 1000
_PAGE = "page_"
"""Begins the name of a page of Anthropic's API; the id of the last file before it follows."""
_file_route = partial(ApiRoute, access=INFERENCE, tag="Batches")
_FILE = (FileObject, FileMetadata)
_route = partial(_file_route, answer=BatchObject)


class BatchRoutes:
    def __init__(self, state: AppState) -> None:
        assert state.jobs is not None, "not served without"
        self._jobs = state.jobs
        self._models = state.models

    @_file_route("POST", "/v1/files", access=UPLOADS, form=UPLOAD_FORM, answer=_FILE, errors=(400,))
    async def create_file(self, request: Request) -> Response:
        """Upload a file, such as the input of a batch."""
        self._models.check_not_ending()  # before the upload is read
        context = context_of(request.scope)
        owner, limits = context.owner, context.identity.storage
        await self._jobs.storage.check(owner, limits, StoredAmount(num_bytes=1, num_files=1))
        async with form_of(request, most_fields=16) as form:
            purpose = purpose_of(form, is_needed=not _is_anthropics(request))
            upload, lifetime_s = form.get("file"), lifetime_of(form)
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
            return json_response(file_list([], has_more=False))  # other purposes have no files
        records, has_more = await self._jobs.files.page(context_of(request.scope).owner, page, purpose)
        return json_response(file_list(records, has_more=has_more))

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
        return json_response(batch_object(batch), headers=ignored.headers)

    @_route("GET", "/v1/batches", query=PAGE_QUERY, answer=BatchList, errors=(404,))
    async def list(self, request: Request) -> Response:
        """List the batches."""
        names = frozenset({"limit", "after"})
        page = page_of(request.query_params, names=names, default=_LISTED, most=_MAX_LISTED)
        batches, has_more = await self._jobs.batches.page(context_of(request.scope).owner, page)
        listed = [*map(batch_object, batches)]
        return json_response(BatchList(data=listed, **page_ends(batches), has_more=has_more))

    @_route("GET", "/v1/batches/{id}")
    async def one(self, request: Request) -> Response:
        """Return a batch."""
        return json_response(batch_object(await self._jobs.batches.get(*_named(request))))

    @_route("POST", "/v1/batches/{id}/cancel", errors=(409,))
    async def cancel(self, request: Request) -> Response:
        """Cancel a batch."""
        return json_response(batch_object(await self._jobs.cancel_batch(*_named(request))))


def _named(request: Request) -> tuple[str, str]:
    return context_of(request.scope).owner, request.path_params["id"]


def _is_anthropics(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _shown(request: Request, record: FileRecord) -> FileObject | FileMetadata:
    return FileMetadata.of(record) if _is_anthropics(request) else response_of(FileObject, record)


async def uploaded(jobs: Jobs, owner: str, file_id: str, most_bytes: int) -> bytes:
    """Return an uploaded file, or `most_bytes` + 1 bytes of a larger one."""
    record = await jobs.files.get(owner, file_id)
    data = bytearray()
    async for part in _whole(jobs.files.content(record.id), record):
        data += part
        if len(data) > most_bytes:
            break
    return bytes(data[: most_bytes + 1])


async def _whole(content: AsyncIterator[bytes], record: FileRecord) -> AsyncIterator[bytes]:
    """The file may be deleted while it is read. Raises JobObjectNotFound."""
    left = record.bytes
    async for part in content:
        left -= len(part)
        yield part
    if left:
        raise errors.JobObjectNotFound(f"The file '{record.id}' was deleted while it was read.")


ROUTER = ApiRouter[AppState](BatchRoutes, is_served=lambda state: state.jobs is not None)
