"""Waiting in tests: for a state that stays, until one deadline. tests/test_waiting.py forbids other waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 60.0
"""Longest wait in a test. It is not a limit on speed: working code needs far less."""
_FIRST_PAUSE_S = 0.005


async def eventually(holds: Callable[[], object]) -> None:
    """Wait until `holds()` is true, of a state that stays true from then on.

    Raises:
        AssertionError: the state was not true before the deadline.
    """
    start_s = time.monotonic()
    while not holds():
        await asyncio.sleep(_pause_s(holds, start_s))


def wait_until(holds: Callable[[], object]) -> None:
    """Do the same in a test without an event loop.

    Raises:
        AssertionError: the state was not true before the deadline.
    """
    start_s = time.monotonic()
    while not holds():
        time.sleep(_pause_s(holds, start_s))


def elapse(seconds: float) -> None:
    """Let time pass where only time can bring a state about. tests/test_waiting.py lists the callers."""
    time.sleep(seconds)


async def elapse_async(seconds: float) -> None:
    """Let time pass for the event loop too."""
    await asyncio.sleep(seconds)


def _pause_s(holds: Callable[[], object], start_s: float) -> float:
    """Return the pause before the next look. Each look costs a busy server time, so looks become rarer."""
    waited_s = time.monotonic() - start_s
    assert waited_s < DEADLINE_S, f"not true within {DEADLINE_S:.0f} s: {holds}"
    return max(_FIRST_PAUSE_S, waited_s / 10)
