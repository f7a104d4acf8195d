"""SIGHUP: what a terminal sends as it closes, and an operator who has changed a file."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType


class Hangup:
    """Made in the main thread at the beginning: a signal that comes before anybody wants it waits for them.

    Noted rather than masked: threads that libraries have started by then would not have the mask.
    """

    def __init__(self) -> None:
        self._has_come = False
        signal.signal(signal.SIGHUP, self._note)

    def call(self, action: Callable[[], None]) -> None:
        """At each signal from now on, in the running loop; and now, if one has come."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)
        if self._has_come:
            action()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
