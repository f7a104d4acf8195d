"""What an engine process died of."""

from __future__ import annotations

import enum
import signal

import msgspec

from openai_cpu_server.sandbox.spawn import death_cause

_FAULTS = {
    number
    for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTRAP")
    if (number := getattr(signal, name, None)) is not None
}


_OUT_OF_MEMORY = (
    "the engine process was killed by the system, which ran out of memory (lower --ctx-size or --cache-mb)"
)


class DeathKind(enum.Enum):
    FAULT = "fault"
    """The process's own doing: a fault or an abort in native code, an exit."""
    HANG = "hang"
    """It made no progress, and was killed for it."""
    MEMORY = "memory"
    """The system killed it because memory ran out."""
    KILL = "kill"
    """Somebody else's signal: an operator's, a guard's; the system's, where it does not say."""

    @property
    def is_from_outside(self) -> bool:
        return self in (DeathKind.MEMORY, DeathKind.KILL)


class Search(enum.Enum):
    """What a death has done for the search for a culprit among the requests."""

    NOTHING = "nothing"
    CLOSER = "closer"
    """The search needed it, and has come closer."""
    FOUND = "found"
    """It has shown the culprit, who explains the deaths before, too."""


class Death(msgspec.Struct, frozen=True):
    kind: DeathKind
    message: str
    """A clause for people: `the engine process was killed (SIGKILL: ...)`."""
    cause: str
    """One of few words, for counters."""

    @property
    def verdict(self) -> str:
        """For a request that is to blame."""
        return f"The engine died each time that it computed this request; the last time {self.message}."

    @classmethod
    def unborn(cls, error: Exception) -> Death:
        """No process could be started."""
        return cls(DeathKind.FAULT, f"the engine process could not be started ({error})", "not_started")

    @classmethod
    def by_message(cls, error: str) -> Death:
        """It was killed because one of its messages cannot be read, as happens between two versions."""
        return cls(DeathKind.FAULT, f"the engine process sent what cannot be read ({error})", "bad_message")

    @classmethod
    def of(cls, exit_status: int | None, *, hang_s: float | None, ran_out_of_memory: bool = False) -> Death:
        """`exit_status`: negative is a signal's number. `hang_s`: it was killed after so long a silence.

        `ran_out_of_memory`: the system was killing for want of memory at that time.
        """
        if hang_s is not None:
            silence = f"the engine process made no progress for {hang_s:.0f} s and was killed"
            return cls(DeathKind.HANG, silence, "hang")
        cause = death_cause(exit_status)
        if exit_status is None or exit_status >= 0:
            return cls(DeathKind.FAULT, f"the engine process ended (exit status {exit_status})", cause)
        if -exit_status in _FAULTS:
            return cls(DeathKind.FAULT, f"the engine process crashed in native code ({cause})", cause)
        if ran_out_of_memory and cause == "SIGKILL":
            return cls(DeathKind.MEMORY, _OUT_OF_MEMORY, "out_of_memory")
        return cls(DeathKind.KILL, f"the engine process was killed ({_killer(cause)})", cause)


def _killer(cause: str) -> str:
    if cause != "SIGKILL":
        return cause
    return "SIGKILL: by somebody, or by something that guards memory"
