"""Objects of files and batches, in the forms of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import mimetypes
from datetime import datetime, timezone

import msgspec

from openai_cpu_server.api.state import ListPage, page_ends, response_of
from openai_cpu_server.jobs.records import BatchRecord, FileRecord, LineError


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


def batch_object(batch: BatchRecord) -> BatchObject:
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


def file_list(records: list[FileRecord], *, has_more: bool) -> FileList:
    data = [response_of(FileObject, record) for record in records]
    return FileList(data=data, **page_ends(records), has_more=has_more)


def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
