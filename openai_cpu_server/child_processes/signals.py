"""Child's side: leaves signals to the parent, and ends with it."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LEFT_TO_PARENT = ("SIGINT", "SIGHUP", "SIGTERM")


def leave_signals_to_parent() -> None:
    """Ignore the signals that Ctrl-C, a closing terminal and service managers send to the whole group. The
    API process decides what they mean, and its streams need this process until then."""
    for name in _LEFT_TO_PARENT:
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def die_with_parent() -> None:
    """Let the kernel kill this process when the parent dies, even if it hangs in native code or is
    stopped. Elsewhere than on Linux the process ends only when its socket closes."""
    _signal_at_parents_death("SIGKILL")


def wake_at_parents_death() -> None:
    """Replace `die_with_parent` in a process that ends by itself when its socket closes. The kernel
    continues a stopped process when the parent dies, so that it can end."""
    _signal_at_parents_death("SIGCONT")


def _signal_at_parents_death(name: str) -> None:
    if sys.platform == "linux":
        number = getattr(signal, name)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
