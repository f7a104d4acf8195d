"""How the engine process stands to the API process that has started it."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LEFT_TO_PARENT = ("SIGINT", "SIGHUP", "SIGTERM")


def leave_signals_to_parent() -> None:
    """Ctrl-C, a closing terminal and service managers signal the whole group; the API process decides what
    that means, and its streams need this process until then."""
    for name in _LEFT_TO_PARENT:
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def die_with_parent() -> None:
    """The kernel kills this process when the parent dies, even if it hangs in native code or is stopped.

    Elsewhere than on Linux the end of the socket has to do.
    """
    _signal_at_parents_death("SIGKILL")


def wake_at_parents_death() -> None:
    """Instead of `die_with_parent`, once the socket's end is noticed: this process goes by itself then, and
    the kernel sees to it that it can, should it be stopped."""
    _signal_at_parents_death("SIGCONT")


def _signal_at_parents_death(name: str) -> None:
    if sys.platform == "linux":
        number = getattr(signal, name)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
