"""Causes and counts of engine deaths."""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from openai_cpu_server.child_processes.spawn import death_cause
from openai_cpu_server.contract.engine import LastDeath
from openai_cpu_server.errors import UNLOADABLE

_FAULTS = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTRAP"}
_OUT_OF_MEMORY = (
    "the engine process was killed by the system, which ran out of memory (lower --ctx-size or --cache-mb)"
)
_NOT_STARTED, _BAD_MESSAGE = "not_started", "bad_message"


class DeathKind(enum.Enum):
    FAULT = "fault"
    """Crash in native code, or an exit."""
    HANG = "hang"
    MEMORY = "memory"
    KILL = "kill"
    """Signal from an operator, a guard, or the system."""

    @property
    def is_from_outside(self) -> bool:
        return self in (DeathKind.MEMORY, DeathKind.KILL)


class SearchProgress(enum.Enum):
    NOTHING = "nothing"
    CLOSER = "closer"
    """The search needed the death and has come closer."""
    FOUND = "found"
    """The culprit is found, which explains earlier deaths, too."""


class Death(msgspec.Struct, frozen=True):
    kind: DeathKind
    message: str
    """Clause for people: `the engine process was killed (SIGKILL: ...)`."""
    cause: str

    @property
    def verdict(self) -> str:
        return f"The engine died each time it computed this request; the last time {self.message}."

    @property
    def may_be_device(self) -> bool:
        return not self.kind.is_from_outside and self.cause not in (_NOT_STARTED, _BAD_MESSAGE)

    @classmethod
    def not_started(cls, error: Exception) -> Death:
        return cls(DeathKind.FAULT, f"the engine process could not be started ({error})", _NOT_STARTED)

    @classmethod
    def of_bad_message(cls, error: str) -> Death:
        return cls(DeathKind.FAULT, f"the engine process sent an unreadable message ({error})", _BAD_MESSAGE)

    @classmethod
    def of(cls, exit_status: int | None, *, hang_s: float | None, ran_out_of_memory: bool = False) -> Death:
        """`hang_s`: silence for which it was killed, or None."""
        if hang_s is not None:
            silence = f"the engine process made no progress for {hang_s:.0f} s and was killed"
            return cls(DeathKind.HANG, silence, "hang")
        cause = death_cause(exit_status)
        if exit_status == UNLOADABLE:
            return cls(DeathKind.FAULT, "llama.cpp cannot be loaded: the log has the reason", cause)
        if exit_status is None or exit_status >= 0:
            return cls(DeathKind.FAULT, f"the engine process ended (exit status {exit_status})", cause)
        if cause in _FAULTS:
            return cls(DeathKind.FAULT, f"the engine process crashed in native code ({cause})", cause)
        if ran_out_of_memory and cause == "SIGKILL":
            return cls(DeathKind.MEMORY, _OUT_OF_MEMORY, "out_of_memory")
        whose = ": from outside, such as by the kernel's OOM killer" if cause == "SIGKILL" else ""
        return cls(DeathKind.KILL, f"the engine process was killed ({cause}{whose})", cause)


_VMSTAT = Path("/proc/vmstat")
_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_LOOKS = 20
"""Remembered readings, because freeing memory may take seconds until the death is noticed."""


class MemoryKiller:
    """Observer of the kernel's count of out-of-memory kills, over the whole machine. Guards in user space
    (earlyoom, systemd-oomd) are not counted."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._seen: deque[int | None] = deque(maxlen=_LOOKS)
        self.look()

    def look(self) -> None:
        """Read the count, which takes 0.1 ms, about every half second."""
        self._seen.append(self._count())

    @property
    def has_struck(self) -> bool:
        """True if the count has grown."""
        before, now = self._seen[0], self._count()
        return before is not None and now is not None and now > before

    def _count(self) -> int | None:
        try:
            found = _COUNT.search(self._vmstat.read_bytes())
        except OSError:
            return None
        return int(found[1]) if found else None


_FIRST_BACKOFF_S = 0.1
_MINUTE_S = 60.0


class CrashRecord:
    """Deaths and failed starts that indicate a fault of the server, of which `max_a_minute` are too many.
    Deaths that a search for a culprit needs do not count, except for its first until the culprit is found."""

    def __init__(self, *, max_a_minute: int, clock: Callable[[], float]) -> None:
        self.max_a_minute = max_a_minute
        self._clock = clock
        self._times: deque[float] = deque(maxlen=max_a_minute)
        self._failed_starts = 0
        self._in_a_row = 0
        """Counted deaths in a row."""

    def note(self) -> None:
        self._in_a_row += 1
        self._times.append(self._clock())

    def excuse(self) -> None:
        """Let the next start begin without a delay."""
        self._in_a_row = 0

    def start_failed(self) -> None:
        """Record a death before the process was ready, in addition to `note`."""
        self._failed_starts += 1

    def started(self) -> None:
        self._failed_starts = 0

    @property
    def why_too_many(self) -> str | None:
        if self._recent() >= self.max_a_minute:
            return f"{self.max_a_minute} crashes within a minute"
        if self._failed_starts >= self.max_a_minute:
            return f"{self.max_a_minute} starts in a row that failed"
        return None

    @property
    def backoff_s(self) -> float:
        """Delay before the next start: 0.1 s, doubled with each death in a row, up to 6.4 s."""
        doublings = max(min(self._recent(), self._in_a_row), self._failed_starts) - 1
        return _FIRST_BACKOFF_S * 2.0 ** min(6, max(0, doublings))

    def _recent(self) -> int:
        return sum(self._clock() - t < _MINUTE_S for t in self._times)


_MOST_RECENT = 10


class DeathRecord:
    def __init__(self, *, max_a_minute: int, clock: Callable[[], float]) -> None:
        self.num = 0
        self.crashes = CrashRecord(max_a_minute=max_a_minute, clock=clock)
        self._clock = clock
        self._recent: deque[tuple[Death, float]] = deque(maxlen=_MOST_RECENT)

    @property
    def recent(self) -> tuple[LastDeath, ...]:
        now_s = self._clock()
        return tuple(
            LastDeath(cause=death.cause, message=death.message, age_s=now_s - died_s)
            for death, died_s in self._recent
        )

    def forgive(self) -> None:
        self.crashes = CrashRecord(max_a_minute=self.crashes.max_a_minute, clock=self._clock)

    def book(
        self, death: Death, *, search: SearchProgress, has_advanced: bool, while_restarting: bool
    ) -> None:
        self.num += 1
        self._recent.append((death, self._clock()))
        if search is SearchProgress.FOUND:
            self.forgive()
            return
        is_kill = death.kind is DeathKind.KILL
        if search is SearchProgress.CLOSER or (is_kill and has_advanced):
            self.crashes.excuse()
        else:
            self.crashes.note()
        if not is_kill and while_restarting:
            self.crashes.start_failed()
