"""Long computations stay off the event loop, and panics of native code within their request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar

from openai_cpu_server.errors import NativePanic

T = TypeVar("T")

INLINE_BYTES = 2048
"""A body of this size is parsed, rendered and tokenised within a millisecond; a thread costs 0.2 ms."""

_SLOW_AT_ONCE = 8
"""A schema can take a second. More such threads get no more done, for they share the interpreter's lock; and
the event loop waits up to 5 ms for each of them whenever it wants that lock."""
_LARGE_BYTES, _LARGE_AT_ONCE = 64 * 1024, 2
"""Bodies above this size are parsed two at a time: each holds the interpreter's lock for milliseconds."""
_slow_lane: RunVar[anyio.CapacityLimiter] = RunVar("slow_lane")
_large_lane: RunVar[anyio.CapacityLimiter] = RunVar("large_lane")


async def off_loop(num_bytes: int, work: Callable[[], T]) -> T:
    """Does work whose time grows with a body of this size, and that waits for nobody: at once if that is
    small, else in a thread.

    Raises what the work raises; NativePanic in place of a panic.
    """
    if num_bytes <= INLINE_BYTES:
        return _contained(work)
    lane = _lane(_large_lane, _LARGE_AT_ONCE) if num_bytes > _LARGE_BYTES else None
    return await anyio.to_thread.run_sync(_contained, work, limiter=lane)


async def in_thread(work: Callable[[], T], *, is_slow: bool = False) -> T:
    """Does work that may wait for a reader, always in a thread. What is slow waits for others that are, and
    keeps no thread from anybody else.

    Raises what the work raises; NativePanic in place of a panic.
    """
    lane = _lane(_slow_lane, _SLOW_AT_ONCE) if is_slow else None
    return await anyio.to_thread.run_sync(_contained, work, limiter=lane)


def _lane(of: RunVar[anyio.CapacityLimiter], at_once: int) -> anyio.CapacityLimiter:
    """The event loop's own."""
    lane = of.get(None)
    if lane is None:
        lane = anyio.CapacityLimiter(at_once)
        of.set(lane)
    return lane


def _contained(work: Callable[[], T]) -> T:
    """A panic of Rust code (llguidance, pydantic) arrives as a BaseException, which would end the server."""
    try:
        return work()
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as panic:
        raise NativePanic from panic
