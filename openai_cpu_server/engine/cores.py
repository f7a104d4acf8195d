"""Choice of the number of compute threads: fewer while other processes take cores, all again when cores
are free. Threads wait for each other after each operation, so one without a core delays all."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from openai_cpu_server.contract.model_info import ThreadControl

logger = logging.getLogger(__name__)

_LOST = 0.3
"""A thread has lost its core if it waits for one for this share of the time. A busy stranger takes a half,
or two thirds where Linux shares cores between groups. API process and clients take at most 0.2
(docs/tuning.md)."""
_FREE = 0.6
"""Idle cores that are necessary for trying another thread."""
_NOT_SLOWER = 0.95
"""Share of another speed that counts as equally fast."""
_WAIT_S, _MOST_WAIT_S = 0.25, 0.8
"""Initial pause after a failed trial of idle cores, and its maximum. The pause doubles each time, so free
cores are used within a second."""
_SELDOM, _SELDOM_S = 20.0, 1.0
"""Pause after a failed trial of fewer threads, as a multiple of the observed time, and its minimum.
Another thread is tried as often although no core is idle, because the process on it may give way."""
_MUCH_MORE = 1.5
"""Ratio to the loss in a failed trial of fewer threads from which another trial is worthwhile."""


class CoresSeen(NamedTuple):
    lost: tuple[float, ...]
    """Share of the time, by thread, in which it was ready and had no core."""
    free: float
    """Cores that no process used, except for those that this engine left idle."""
    speed: float
    """Share of the undisturbed speed of all threads, by the cost model."""
    elapsed_s: float
    throttled: float = 0.0
    """Share of the time in which no thread ran because a quota was exhausted."""

    @property
    def most_lost(self) -> float:
        return max(self.lost, default=0.0)

    @property
    def is_disturbed(self) -> bool:
        return self.most_lost >= _LOST


@dataclass(frozen=True)
class _Trial:
    """Change of the number of threads, with the number and the observation before it."""

    threads: int
    seen: CoresSeen


class ThreadChoice:
    """Decision about the number of threads. Each change is a trial, which stays if it is not slower."""

    def __init__(self, most: int) -> None:
        self.most = self.threads = most
        self._trial: _Trial | None = None
        self._wait_s = _WAIT_S
        self._fewer_at_s = self._idle_at_s = self._more_at_s = -math.inf
        """Times before which fewer threads, idle cores, and cores in use are not tried again."""
        self._lost_in_vain = 0.0
        """Loss at which fewer threads did not help."""

    def decide(self, seen: CoresSeen, now_s: float) -> int:
        trial, self._trial = self._trial, None
        if trial is not None and self._has_failed(trial, seen):
            self._put_off(trial, seen, now_s)
            self.threads = trial.threads
            return self.threads
        if trial is not None:
            self._wait_s = _WAIT_S
            self._more_at_s = now_s + _SELDOM_S
        wanted = self._wanted(seen, now_s)
        if wanted != self.threads:
            self._trial = _Trial(self.threads, seen)
            self.threads = wanted
        return self.threads

    def _put_off(self, failed: _Trial, seen: CoresSeen, now_s: float) -> None:
        seldom_s = now_s + max(_SELDOM_S, _SELDOM * seen.elapsed_s)
        if self.threads < failed.threads:
            self._fewer_at_s, self._lost_in_vain = seldom_s, failed.seen.most_lost
            return
        self._more_at_s = seldom_s
        if failed.seen.free >= _FREE:
            self._idle_at_s = now_s + self._wait_s
            self._wait_s = min(2 * self._wait_s, _MOST_WAIT_S)

    def _wanted(self, seen: CoresSeen, now_s: float) -> int:
        if seen.is_disturbed:
            if now_s < self._fewer_at_s and seen.most_lost < _MUCH_MORE * self._lost_in_vain:
                return self.threads
            num_lost = sum(share >= _LOST for share in seen.lost)
            if num_lost >= self.threads:  # a quota, or strangers everywhere: so many cores are left
                num_lost = round(sum(seen.lost))
            return max(1, self.threads - max(1, num_lost))
        if seen.free >= _FREE and now_s >= self._idle_at_s:
            return min(self.most, self.threads + max(1, round(seen.free)))
        return min(self.most, self.threads + (now_s >= self._more_at_s))

    def _has_failed(self, trial: _Trial, seen: CoresSeen) -> bool:
        """The smaller of two equally fast numbers is right. A larger one whose threads get their cores is
        right at any observed speed, because steps differ in speed."""
        if self.threads < trial.threads:
            return seen.speed < _NOT_SLOWER * trial.seen.speed
        return seen.is_disturbed and _NOT_SLOWER * seen.speed < trial.seen.speed


_LOOK_S = 0.06
"""Duration of observation before a decision: some time slices of Linux, which are 3 ms."""
_LOG_S = 10.0
"""Minimum time between two log messages about changes."""


class CoreMonitor:
    """Observer of steps that sets the number of threads for the next one."""

    def __init__(self, threads: ThreadControl, clock: Callable[[], float]) -> None:
        self._threads = threads
        self._clock = clock
        self._choice = ThreadChoice(threads.most)
        self._waits_s = threads.waits_s()
        self._is_crowded = False
        """True if cores are lost and no other number of threads is better."""
        self.is_throttled = False
        """True if a cgroup's quota of CPU time took cores at the last observation."""
        self._logged, self._logged_s = threads.most, -math.inf
        self._begin()

    @property
    def count(self) -> int:
        return self._choice.threads

    def computed(self, elapsed_ms: float, alone_ms: float) -> bool:
        """Record a step that would have taken `alone_ms` on all threads, and possibly change their number.
        Return True if it teaches the cost of steps, which is not so if cores were lost for a moment."""
        waits_s = self._threads.waits_s()
        lost_s = {thread: waited_s - self._waits_s.get(thread, 0.0) for thread, waited_s in waits_s.items()}
        self._waits_s = waits_s
        self._elapsed_s += elapsed_ms / 1000
        self._alone_s += alone_ms / 1000
        for thread, thread_s in lost_s.items():
            self._lost_s[thread] += thread_s
        is_disturbed = max(lost_s.values(), default=0.0) >= _LOST * elapsed_ms / 1000
        teaches = not is_disturbed or self._is_crowded
        if self._elapsed_s >= _LOOK_S:
            self._decide()
            self._begin()
        return teaches

    def use_all(self) -> None:
        """Use all threads, for steps that are timed while the engine is idle."""
        self._choice = ThreadChoice(self._threads.most)
        self._threads.use(self._choice.threads)
        self._begin()

    def _begin(self) -> None:
        self._elapsed_s = self._alone_s = 0.0
        self._lost_s: defaultdict[int, float] = defaultdict(float)
        self._began_s = self._clock()
        self._idle_s = self._threads.idle_s() if self.count < self._threads.most else 0.0
        self._throttled_s = self._threads.throttled_s()

    def _decide(self) -> None:
        before, seen = self.count, self._seen()
        self._threads.use(self._choice.decide(seen, self._clock()))
        self._is_crowded = seen.is_disturbed and self.count == before
        self.is_throttled = seen.throttled > _LOST / 2
        if self.count != self._logged and self._clock() - self._logged_s >= _LOG_S:
            self._logged, self._logged_s = self.count, self._clock()
            is_all = self.count == self._choice.most
            by_quota = "the control group's quota of CPU time is used up"
            reason = by_quota if self.is_throttled else "others use the cores"
            why = "all have their cores again" if is_all else reason
            logger.info("threads that compute: %d of %d (%s)", self.count, self._choice.most, why)

    def _seen(self) -> CoresSeen:
        free = 0.0
        if self.count < self._threads.most:
            span_s = max(self._clock() - self._began_s, self._elapsed_s)
            own_idle_s = self.count * (span_s - self._elapsed_s)
            free = (self._threads.idle_s() - self._idle_s - own_idle_s) / span_s
        return CoresSeen(
            lost=tuple(lost_s / self._elapsed_s for lost_s in self._lost_s.values()),
            free=free,
            speed=self._alone_s / self._elapsed_s,
            elapsed_s=self._elapsed_s,
            throttled=(self._threads.throttled_s() - self._throttled_s) / self._elapsed_s,
        )
