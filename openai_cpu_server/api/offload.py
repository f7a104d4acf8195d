"""Long computations stay off the event loop, and panics of native code within their request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio

from openai_cpu_server.errors import NativePanic

T = TypeVar("T")

INLINE_BYTES = 2048
"""A body of this size is parsed, rendered and tokenised within a millisecond; a thread costs 0.2 ms."""

SLOW = INLINE_BYTES + 1
"""It stands in place of a size: this work can take long, whatever the size."""


async def off_loop(num_bytes: int, work: Callable[[], T]) -> T:
    """Does work whose time grows with a body of this size: at once if that is small, else in a thread.

    Raises what the work raises; NativePanic in place of a panic.
    """
    if num_bytes <= INLINE_BYTES:
        return _contained(work)
    return await anyio.to_thread.run_sync(_contained, work)


def _contained(work: Callable[[], T]) -> T:
    """A panic of Rust code (llguidance, pydantic) arrives as a BaseException, which would end the server."""
    try:
        return work()
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as panic:
        raise NativePanic from panic
