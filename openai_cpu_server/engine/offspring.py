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
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
