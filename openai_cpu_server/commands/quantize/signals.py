"""Turns signals that ask the command to stop into an exception, so that everything is cleaned up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)


class Stopped(BaseException):
    """A signal has come. It is no `Exception`, so that handlers of those let it pass."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Raise `Stopped` where a signal arrives, until the yielded function is called: from then on it is too
    late.

    Ignored signals (`nohup`) stay ignored; so does a second signal, because cleaning up takes no time.
    """
    before = {number: signal.getsignal(number) for number in _ASKING}
    mine = [number for number, handler in before.items() if handler in _UNTOUCHED]

    def ignore() -> None:
        for number in mine:
            signal.signal(number, signal.SIG_IGN)

    def stop(number: int, _frame: FrameType | None) -> None:
        ignore()
        raise Stopped(number)

    for number in mine:
        signal.signal(number, stop)
    try:
        yield ignore
    finally:
        for number in mine:
            signal.signal(number, before[number])
