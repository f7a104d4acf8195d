"""The records in the database, all frozen, the states of a batch, and the options of the batch jobs."""

from __future__ import annotations

import enum

import msgspec


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    """The model of this server. Batches of other models are left to other servers."""
    max_rows: int = 50_000
    """The most requests in one batch, which is OpenAI's limit."""
    max_line_bytes: int = 32 * 1024 * 1024
    concurrency: int = 32
    """The most rows of all batches that run at once."""
    max_batches: int = 4
    """The most batches that run at once, so that a short one need not wait for the end of a long one."""
    lease_s: float = 30.0
    """After so many seconds without a sign of life, another server takes a batch."""
    response_lifetime_s: float = 30 * 24 * 3600
    """Stored responses are deleted after so many seconds. The default is OpenAI's 30 days."""
    poll_s: float = 2.0
    """The seconds between looks for other servers' work: new batches, cancellations, expired leases."""


class BatchStatus(enum.Enum):
    """OpenAI's names."""

    VALIDATING = "validating"
    FAILED = "failed"
    """The input file is wrong; no row has run."""
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
        """The column with the time at which a batch got this state."""
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
"""All other states are ends."""
ACTIVE = tuple(status.value for status in _MOVES)
"""The states of batches that have not ended, as the database has them."""


class FilePurpose(enum.Enum):
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"
    VISION = "vision"
    USER_DATA = "user_data"
    """These two are shown to models."""
    PARTIAL = "partial"
    """Nobody sees it: an upload that has not ended, or what is left of a file that is deleted."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Times are Unix seconds."""

    id: str
    owner: str
    """The name of the API key to which the file belongs; "" if the server has no keys."""
    purpose: FilePurpose
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None = None


class StoredAmount(msgspec.Struct, frozen=True, kw_only=True):
    """How much is stored of an owner."""

    num_bytes: int = 0
    """What files, results of batches and responses take."""
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
    """What an owner may store; None: there is no such limit."""

    max_bytes: int | None = None
    max_files: int | None = None

    def excess(self, stored: StoredAmount) -> str | None:
        """Says which limit this would exceed; None: none."""
        if self.max_files is not None and stored.num_files > self.max_files:
            return f"files: Limit {self.max_files}"
        if self.max_bytes is not None and stored.num_bytes > self.max_bytes:
            return f"stored bytes: Limit {self.max_bytes}, Used and requested {stored.num_bytes}"
        return None


NO_LIMITS = StorageLimits()


class LineError(msgspec.Struct, frozen=True):
    """An error in an input file; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    model: str
    """The model of the server that accepted the batch: only servers of this model run it."""
    endpoint: str
    input_file_id: str
    output_id: str
    """The id that is set aside at the start. It becomes a file when the batch ends with results."""
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
    """The result of one row: a line for the output file or for the error file."""

    line: int
    is_ok: bool
    content: bytes
    """The bytes of the line, with its line end."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list is asked for."""

    limit: int
    after: str | None = None
    """The id of the last one that the client has seen."""
    is_ascending: bool = False


class ResponseStatus(enum.Enum):
    """OpenAI's names."""

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
    """One item that went into a response, or came out of it."""

    id: str
    content: bytes
    """JSON."""
    is_output: bool = False


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    """As in `FileRecord`."""
    previous_id: str | None
    """The response that it goes on from."""
    status: ResponseStatus
    is_background: bool = False
    created_at: int
    expires_at: int
    response: bytes
    """The object as clients see it, in JSON."""
    written: bytes = b""
    """The tokens of its output, as whoever stored them encodes them; b"": unknown."""
    vocabulary: str = ""
    """The model whose tokens these are."""
    lease_holder: str | None = None
    """The process that runs it in the background."""
    lease_until: float | None = None


class ConversationRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    """As in `FileRecord`."""
    created_at: int
    expires_at: int
    metadata: dict[str, str]


class KeptItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a conversation."""

    id: str
    content: bytes
    """JSON."""
    answer_id: str | None = None
    """The response that it came out of."""
    written: bytes = b""
    """The tokens of that response's output, which the first of its items has."""
    vocabulary: str = ""
    """The model whose tokens these are."""


class ConversationTurn(msgspec.Struct, frozen=True):
    """What is added to a conversation."""

    conversation_id: str
    items: tuple[KeptItem, ...]
    expires_at: int
    """When the conversation expires from then on."""

    @property
    def num_bytes(self) -> int:
        return sum(len(item.content) + len(item.written) for item in self.items)


class ChainedResponse(msgspec.Struct, frozen=True):
    """A response in a chain of responses, with its own items."""

    record: ResponseRecord
    items: tuple[ItemRecord, ...]
