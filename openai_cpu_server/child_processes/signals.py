"""Child's side: leaves signals to the parent, and ends with it."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LEFT_TO_PARENT = ("SIGINT", "SIGHUP", "SIGTERM")


def leave_signals_to_parent() -> None:
    """Ignore signals to the whole group, because the parent's streams need this process until the parent
    decides."""
    for name in _LEFT_TO_PARENT:
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def die_with_parent() -> None:
    """Let the kernel kill this process when the parent dies, even if it hangs. Systems other than Linux have
    only the end of the socket."""
    _signal_at_parents_death("SIGKILL")


def wake_at_parents_death() -> None:
    """Wake this process if it is stopped when the parent dies, instead of `die_with_parent`."""
    _signal_at_parents_death("SIGCONT")


def _signal_at_parents_death(name: str) -> None:
    if sys.platform == "linux":
        number = getattr(signal, name)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
