"""SIGHUP: a terminal sends it as it closes, an operator after changing a file."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType


class Hangup:
    """Catches the signal. Make it in the main thread at the start: a signal that comes early is not lost.

    The signal is noted rather than masked: threads that libraries have started before would not have the
    mask.
    """

    def __init__(self) -> None:
        self._has_come = False
        signal.signal(signal.SIGHUP, self._note)

    def call(self, action: Callable[[], None]) -> None:
        """Call a function at each signal from now on, in the running loop; and now, if one has come."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)
        if self._has_come:
            action()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
