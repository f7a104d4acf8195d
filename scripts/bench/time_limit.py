"""Time limit of a whole run. It ends workloads, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class TimeUp(KeyboardInterrupt):
    """A KeyboardInterrupt, because event loops let no other kind of exception through."""


class TimeLimit:
    """Time limit of the process, which uses no other alarm."""

    def __init__(self, seconds: int | None) -> None:
        self.is_over = False
        self._may_raise = False
        if seconds is not None:
            signal.signal(signal.SIGALRM, self._ring)
            signal.alarm(seconds)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the block with TimeUp when the time is over. A report written outside it is not disturbed."""
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
