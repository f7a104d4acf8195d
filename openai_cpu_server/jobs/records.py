from __future__ import annotations

import enum

import msgspec


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    max_rows: int = 50_000
    """OpenAI's limit for one batch."""
    max_line_bytes: int = 32 * 1024 * 1024
    concurrency: int = 32
    """Rows of all batches."""
    max_batches: int = 4
    """Several, so that short ones need not wait."""
    lease_s: float = 30.0
    """Silence after which another server takes a batch."""
    response_lifetime_s: float = 30 * 24 * 3600
    """OpenAI's 30 days."""
    poll_s: float = 2.0


class BatchStatus(enum.Enum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    def may_become(self, other: BatchStatus) -> bool:
        return other in _MOVES.get(self, ())

    @property
    def has_ended(self) -> bool:
        return self not in _MOVES

    @property
    def moment(self) -> str:
        return f"{self.value}_at"


_MOVES = {
    BatchStatus.VALIDATING: {
        BatchStatus.FAILED,
        BatchStatus.IN_PROGRESS,
        BatchStatus.EXPIRED,
        BatchStatus.CANCELLING,
    },
    BatchStatus.IN_PROGRESS: {BatchStatus.FINALIZING, BatchStatus.EXPIRED, BatchStatus.CANCELLING},
    BatchStatus.FINALIZING: {BatchStatus.COMPLETED},
    BatchStatus.CANCELLING: {BatchStatus.CANCELLED},
}
ACTIVE = tuple(status.value for status in _MOVES)


class FilePurpose(enum.Enum):
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"
    VISION = "vision"
    USER_DATA = "user_data"
    """Shown to models, like VISION and ASSISTANTS."""
    ASSISTANTS = "assistants"
    PARTIAL = "partial"
    """Hidden: an unfinished upload, or the rest of a deleted file."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """File, with times in Unix seconds."""

    id: str
    owner: str
    """Name of the API key, or "" if the server has no keys."""
    purpose: FilePurpose
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None = None


class StoredAmount(msgspec.Struct, frozen=True, kw_only=True):
    num_bytes: int = 0
    num_files: int = 0

    def __add__(self, other: StoredAmount) -> StoredAmount:
        return StoredAmount(
            num_bytes=self.num_bytes + other.num_bytes, num_files=self.num_files + other.num_files
        )

    def __sub__(self, other: StoredAmount) -> StoredAmount:
        return StoredAmount(
            num_bytes=self.num_bytes - other.num_bytes, num_files=self.num_files - other.num_files
        )


class StorageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an owner. None means no limit."""

    max_bytes: int | None = None
    max_files: int | None = None

    def excess(self, stored: StoredAmount) -> str | None:
        if self.max_files is not None and stored.num_files > self.max_files:
            return f"files: Limit {self.max_files}"
        if self.max_bytes is not None and stored.num_bytes > self.max_bytes:
            return f"stored bytes: Limit {self.max_bytes}, Used and requested {stored.num_bytes}"
        return None


NO_LIMITS = StorageLimits()


class LineError(msgspec.Struct, frozen=True):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    model: str
    """Model whose servers run the batch."""
    endpoint: str
    input_file_id: str
    output_id: str
    """Reserved at the start. Becomes a file when the batch ends with results."""
    error_id: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    errors: list[LineError] | None = None
    lease_holder: str | None = None
    lease_until: float | None = None

    @property
    def output_file_id(self) -> str | None:
        return self.output_id if self.status.has_ended and self.completed else None

    @property
    def error_file_id(self) -> str | None:
        return self.error_id if self.status.has_ended and self.failed else None


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    line: int
    is_ok: bool
    content: bytes
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int
    after: str | None = None
    is_ascending: bool = False


class ResponseStatus(enum.Enum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self not in (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)


class ItemRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    content: bytes
    is_output: bool = False


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    previous_id: str | None
    status: ResponseStatus
    is_background: bool = False
    created_at: int
    expires_at: int
    response: bytes
    """JSON for clients."""
    written: bytes = b""
    """Tokens of the output in the caller's encoding, or b"" if unknown."""
    vocabulary: str = ""
    lease_holder: str | None = None
    lease_until: float | None = None


class ConversationRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    created_at: int
    expires_at: int
    metadata: dict[str, str]


class ConversationItem(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    content: bytes
    answer_id: str | None = None
    written: bytes = b""
    """Tokens of the response, stored with its first item."""
    vocabulary: str = ""


class ConversationTurn(msgspec.Struct, frozen=True):
    conversation_id: str
    items: tuple[ConversationItem, ...]
    expires_at: int

    @property
    def num_bytes(self) -> int:
        return sum(len(item.content) + len(item.written) for item in self.items)


class ChainedResponse(msgspec.Struct, frozen=True):
    record: ResponseRecord
    items: tuple[ItemRecord, ...]
