"""Keeps long computations off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")

INLINE_BYTES = 2048
"""A body of this size is parsed, rendered and tokenised within a millisecond; a thread costs 0.2."""

SLOW = INLINE_BYTES + 1
"""In place of a size: work that can take long, whatever the size."""


async def off_loop(num_bytes: int, work: Callable[[], T]) -> T:
    """Do work whose time grows with a body of this size: at once if small, else in a thread."""
    if num_bytes <= INLINE_BYTES:
        return work()
    return await anyio.to_thread.run_sync(work)
