"""What engine processes died of, how many did, and whether they are too many."""

from __future__ import annotations

import enum
import re
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from openai_cpu_server.child_processes.spawn import death_cause
from openai_cpu_server.contract.engine import LastDeath
from openai_cpu_server.errors import UNLOADABLE

_FAULTS = {
    number
    for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTRAP")
    if (number := getattr(signal, name, None)) is not None
}


_OUT_OF_MEMORY = (
    "the engine process was killed by the system, which ran out of memory (lower --ctx-size or --cache-mb)"
)


_NOT_STARTED, _BAD_MESSAGE = "not_started", "bad_message"


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


class SearchProgress(enum.Enum):
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

    @property
    def may_be_device(self) -> bool:
        """Whether a device's driver may be to blame."""
        return not self.kind.is_from_outside and self.cause not in (_NOT_STARTED, _BAD_MESSAGE)

    @classmethod
    def not_started(cls, error: Exception) -> Death:
        """No process could be started."""
        return cls(DeathKind.FAULT, f"the engine process could not be started ({error})", _NOT_STARTED)

    @classmethod
    def of_bad_message(cls, error: str) -> Death:
        """It was killed because one of its messages cannot be read, as happens between two versions."""
        return cls(DeathKind.FAULT, f"the engine process sent what cannot be read ({error})", _BAD_MESSAGE)

    @classmethod
    def of(cls, exit_status: int | None, *, hang_s: float | None, ran_out_of_memory: bool = False) -> Death:
        """`exit_status`: negative is a signal's number. `hang_s`: it was killed after so long a silence.

        `ran_out_of_memory`: the system was killing for want of memory at that time.
        """
        if hang_s is not None:
            silence = f"the engine process made no progress for {hang_s:.0f} s and was killed"
            return cls(DeathKind.HANG, silence, "hang")
        cause = death_cause(exit_status)
        if exit_status == UNLOADABLE:
            return cls(DeathKind.FAULT, "llama.cpp cannot be loaded: the log says why", cause)
        if exit_status is None or exit_status >= 0:
            return cls(DeathKind.FAULT, f"the engine process ended (exit status {exit_status})", cause)
        if -exit_status in _FAULTS:
            return cls(DeathKind.FAULT, f"the engine process crashed in native code ({cause})", cause)
        if ran_out_of_memory and cause == "SIGKILL":
            return cls(DeathKind.MEMORY, _OUT_OF_MEMORY, "out_of_memory")
        whose = ": by somebody, or by something that guards memory" if cause == "SIGKILL" else ""
        return cls(DeathKind.KILL, f"the engine process was killed ({cause}{whose})", cause)


_VMSTAT = Path("/proc/vmstat")
_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_LOOKS = 20
"""How many looks are kept: freeing memory may take seconds, and only then the death is noticed."""


class MemoryKiller:
    """Watches the kernel's count of its kills during one engine process's life, by a look now and then.

    Linux counts (since 4.13), over the whole machine, whatever container the victim was in. A guard in user
    space (earlyoom, systemd-oomd) counts nowhere.
    """

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._seen: deque[int | None] = deque(maxlen=_LOOKS)
        self.look()

    def look(self) -> None:
        """Read the count. To be called every half second or so; it takes 0.1 ms."""
        self._seen.append(self._count())

    @property
    def has_struck(self) -> bool:
        """The count has grown since the oldest look that is kept. False too where there is no count."""
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
    """Deaths that say something is wrong here; `max_a_minute` of them are too many.

    Those by which the search for a culprit comes closer to it do not count: there are only few of them. The
    first of a search does, until the culprit is found: that explains it, and the record begins anew.

    So are `max_a_minute` starts in a row that fail, however long they take: a large model loads for minutes.
    """

    def __init__(self, *, max_a_minute: int, clock: Callable[[], float]) -> None:
        self.max_a_minute = max_a_minute
        self._clock = clock
        self._times: deque[float] = deque(maxlen=max_a_minute)
        self._failed_starts = 0
        self._in_a_row = 0
        """The deaths that count since the last one that does not."""

    def note(self) -> None:
        """The engine has died."""
        self._in_a_row += 1
        self._times.append(self._clock())

    def excuse(self) -> None:
        """The engine has died, but nothing is wrong here: the next start need not wait."""
        self._in_a_row = 0

    def start_failed(self) -> None:
        """It died by itself before it was ready. (That is a death to note, too.)"""
        self._failed_starts += 1

    def started(self) -> None:
        self._failed_starts = 0

    @property
    def why_too_many(self) -> str | None:
        """None: they are not."""
        if self._recent() >= self.max_a_minute:
            return f"{self.max_a_minute} crashes within a minute"
        if self._failed_starts >= self.max_a_minute:
            return f"{self.max_a_minute} starts in a row that failed"
        return None

    @property
    def backoff_s(self) -> float:
        """0.1 s; doubled with each failed start in a row, and with each death in a row that counts and came
        within the last minute, up to 6.4 s."""
        doublings = max(min(self._recent(), self._in_a_row), self._failed_starts) - 1
        return _FIRST_BACKOFF_S * 2.0 ** min(6, max(0, doublings))

    def _recent(self) -> int:
        return sum(self._clock() - t < _MINUTE_S for t in self._times)


_MOST_KNOWN = 10
"""So many are remembered for those who watch."""


class DeathRecord:
    """Counts those of processes that another was to replace."""

    def __init__(self, *, max_a_minute: int, clock: Callable[[], float]) -> None:
        self.num = 0
        self.crashes = CrashRecord(max_a_minute=max_a_minute, clock=clock)
        """Those of them that count."""
        self._clock = clock
        self._known: deque[tuple[Death, float]] = deque(maxlen=_MOST_KNOWN)
        """The last ones, and when they were."""

    @property
    def known(self) -> tuple[LastDeath, ...]:
        """The last ones, the oldest first."""
        now_s = self._clock()
        return tuple(
            LastDeath(cause=death.cause, message=death.message, age_s=now_s - died_s)
            for death, died_s in self._known
        )

    def forgive(self) -> None:
        """None of them counts any more: they are explained, or it is tried again on purpose."""
        self.crashes = CrashRecord(max_a_minute=self.crashes.max_a_minute, clock=self._clock)

    def book(
        self, death: Death, *, search: SearchProgress, has_advanced: bool, while_restarting: bool
    ) -> None:
        """`has_advanced`: the process had brought tokens or vectors."""
        self.num += 1
        self._known.append((death, self._clock()))
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
