"""The time that a whole run may take: it ends workloads, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class TimeUp(KeyboardInterrupt):
    """The time is over. Event loops let no other exception through."""


class TimeLimit:
    """Of the process, whose only alarm this is."""

    def __init__(self, seconds: int | None) -> None:
        """From now on; None: no limit."""
        self.is_over = False
        self._may_raise = False
        if seconds is not None:
            signal.signal(signal.SIGALRM, self._ring)
            signal.alarm(seconds)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """What is in it ends with TimeUp. A report that is being written meanwhile is not disturbed."""
        self._may_raise = True
        try:
            if self.is_over:
                raise TimeUp
            yield
        finally:
            self._may_raise = False

    def _ring(self, *_: object) -> None:
        self.is_over = True
        if self._may_raise:
            self._may_raise = False
            raise TimeUp
