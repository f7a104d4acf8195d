"""What the batch jobs are told at their start."""

from __future__ import annotations

import msgspec


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    """Batches of other models are left to other servers."""
    max_rows: int = 50_000
    """Requests of one batch; OpenAI's limit."""
    max_line_bytes: int = 32 * 1024 * 1024
    concurrency: int = 32
    """Rows that run at once, of all batches together."""
    max_batches: int = 4
    """Batches that run at once: a short one does not wait for a long one's end."""
    lease_s: float = 30.0
    """After so long without a sign of life a batch goes to another server."""
    poll_s: float = 2.0
    """Between looks for other servers' doings: new batches, cancellations, leases that have run out."""
