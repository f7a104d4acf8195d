"""What an engine process died of, and what that says about the requests that it was computing."""

from __future__ import annotations

import enum
import signal

import msgspec

from openai_cpu_server.engine.watch import death_cause

_FAULTS = {
    number
    for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTRAP")
    if (number := getattr(signal, name, None)) is not None
}


class DeathKind(enum.Enum):
    FAULT = "fault"
    """The process's own doing: a fault or an abort in native code, an exit."""
    HANG = "hang"
    """It made no progress, and was killed for it."""
    KILL = "kill"
    """Somebody else's signal: an operator's, or the system's when memory runs out."""


class Death(msgspec.Struct, frozen=True):
    kind: DeathKind
    message: str
    """A clause for people: `the engine process was killed (SIGKILL: ...)`."""
    cause: str
    """One of few words, for counters."""

    @classmethod
    def of(cls, exit_status: int | None, *, hang_s: float | None) -> Death:
        """`exit_status`: negative is a signal's number. `hang_s`: it was killed after so long a silence."""
        if hang_s is not None:
            silence = f"the engine process made no progress for {hang_s:.0f} s and was killed"
            return cls(DeathKind.HANG, silence, "hang")
        cause = death_cause(exit_status)
        if exit_status is None or exit_status >= 0:
            return cls(DeathKind.FAULT, f"the engine process ended (exit status {exit_status})", cause)
        if -exit_status in _FAULTS:
            return cls(DeathKind.FAULT, f"the engine process crashed in native code ({cause})", cause)
        return cls(DeathKind.KILL, f"the engine process was killed ({_killer(cause)})", cause)


def _killer(cause: str) -> str:
    if cause != "SIGKILL":
        return cause
    return "SIGKILL: by the system if memory ran out, see its log; else by somebody"
