"""The deaths of one engine's processes: how many, the last one, and whether they are too many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from openai_cpu_server.contract.engine import LastDeath
from openai_cpu_server.dispatch.death import Death, DeathKind, Search
from openai_cpu_server.dispatch.process.crashes import CrashRecord

_MOST_KNOWN = 10
"""So many are remembered for those who watch."""


class Deaths:
    """Counts those of processes that another was to replace."""

    def __init__(self, *, max_a_minute: int, clock: Callable[[], float]) -> None:
        self.num = 0
        self._max_a_minute = max_a_minute
        self._clock = clock
        self._crashes = CrashRecord(max_a_minute=max_a_minute, clock=clock)
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

    @property
    def last(self) -> LastDeath | None:
        return self.known[-1] if self._known else None

    @property
    def why_too_many(self) -> str | None:
        """None: they are not."""
        return self._crashes.why_too_many

    @property
    def backoff_s(self) -> float:
        """How long to wait before the next start."""
        return self._crashes.backoff_s

    def forgive(self) -> None:
        """None of them counts any more: they are explained, or it is tried again on purpose."""
        self._crashes = CrashRecord(max_a_minute=self._max_a_minute, clock=self._clock)

    def started(self) -> None:
        """A process has become ready."""
        self._crashes.started()

    def book(self, death: Death, *, search: Search, has_advanced: bool, while_restarting: bool) -> None:
        """`has_advanced`: the process had brought tokens or vectors."""
        self.num += 1
        self._known.append((death, self._clock()))
        if search is Search.FOUND:
            self.forgive()
            return
        is_kill = death.kind is DeathKind.KILL
        if search is Search.CLOSER or (is_kill and has_advanced):
            self._crashes.excuse()
        else:
            self._crashes.note()
        if not is_kill and while_restarting:
            self._crashes.start_failed()
