"""The options of the batch jobs."""

from __future__ import annotations

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
