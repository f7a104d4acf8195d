"""The child's side: it leaves signals to its parent, and ends with it."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LEFT_TO_PARENT = ("SIGINT", "SIGHUP", "SIGTERM")


def leave_signals_to_parent() -> None:
    """Ignore what Ctrl-C, a closing terminal and service managers send to the whole group: the API process
    decides what it means, and its streams need this process until then."""
    for name in _LEFT_TO_PARENT:
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def die_with_parent() -> None:
    """Let the kernel kill this process when the parent dies, even if it hangs in native code or is stopped.

    Elsewhere than on Linux the end of the socket has to do.
    """
    _signal_at_parents_death("SIGKILL")


def wake_at_parents_death() -> None:
    """Replaces `die_with_parent` in a process that ends by itself when the socket does: if it is stopped when
    the parent dies, the kernel lets it go on, so that it can."""
    _signal_at_parents_death("SIGCONT")


def _signal_at_parents_death(name: str) -> None:
    if sys.platform == "linux":
        number = getattr(signal, name)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
