"""How many threads compute the next step: fewer where others take the cores, all of them again where these
are free. Threads wait for each other after each operation, so one that has lost its core holds up all."""

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
"""A thread that waits for a core for this share of the time has lost it. A busy stranger takes a half, or two
thirds where Linux shares cores between groups; what API process and clients take is 0.2 at most
(`scripts/regress.py stranger` prints it)."""
_FREE = 0.6
"""Cores that must have been idle for one more thread to be tried."""
_NOT_SLOWER = 0.95
"""What does at least this share of another's speed is as fast."""
_WAIT_S, _MOST_WAIT_S = 0.25, 0.8
"""Where idle cores were tried in vain they are not tried for so long, each time twice as long, up to the
latter: cores that are free again are used within a second."""
_SELDOM, _SELDOM_S = 20.0, 1.0
"""Where fewer threads were tried in vain they are not tried for so many times as long as that took, and for
so many seconds at least. One more is tried as often though no core is idle: whoever uses it may give way."""
_MUCH_MORE = 1.5
"""Times as much as is lost where fewer threads were tried in vain: that is another matter."""


class CoresSeen(NamedTuple):
    """What was seen in the steps since the last look."""

    lost: tuple[float, ...]
    """Of each thread, the share of the time in which it could have computed, and had no core."""
    free: float
    """Cores that nobody used, those not counted that this engine did not use by itself."""
    speed: float
    """Of what all threads would have done undisturbed, by the cost model."""
    elapsed_s: float
    """What these steps took."""
    throttled: float = 0.0
    """The share of the time in which nothing ran because a quota was used up."""

    @property
    def most_lost(self) -> float:
        return max(self.lost, default=0.0)

    @property
    def is_disturbed(self) -> bool:
        return self.most_lost >= _LOST


@dataclass(frozen=True)
class _Trial:
    """Another number of threads, from which there is a way back."""

    threads: int
    """Those before."""
    seen: CoresSeen
    """With these."""


class ThreadChoice:
    """Decides. Each change is a trial: it stays if it was no slower."""

    def __init__(self, most: int) -> None:
        self.most = self.threads = most
        self._trial: _Trial | None = None
        self._wait_s = _WAIT_S
        self._fewer_at_s = self._idle_at_s = self._more_at_s = -math.inf
        """Before that fewer threads are not tried again, nor idle cores, nor cores that others use."""
        self._lost_in_vain = 0.0
        """What was lost where fewer threads did not help."""

    def decide(self, seen: CoresSeen, now_s: float) -> int:
        """How many threads are to compute from now on."""
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
        """The like of it is not tried for a while."""
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
        """Of two that are as fast, fewer threads are right. More that get their cores are right, whatever
        speed was seen: steps differ in it."""
        if self.threads < trial.threads:
            return seen.speed < _NOT_SLOWER * trial.seen.speed
        return seen.is_disturbed and _NOT_SLOWER * seen.speed < trial.seen.speed


_LOOK_S = 0.06
"""So long steps are watched before something is decided: some time slices of Linux, which are 3 ms."""
_TELL_S = 10.0
"""The log tells of changes at most so often."""


class CoreWatch:
    """Watches steps, and sets how many threads compute the next one."""

    def __init__(self, threads: ThreadControl, clock: Callable[[], float]) -> None:
        self._threads = threads
        self._clock = clock
        self._choice = ThreadChoice(threads.most)
        self._waits_s = threads.waits_s()
        self._is_crowded = False
        """Cores are lost, and no other number of threads is better."""
        self.is_throttled = False
        """By the last look, a control group's quota of CPU time takes cores."""
        self._told, self._told_s = threads.most, -math.inf
        self._begin()

    @property
    def count(self) -> int:
        """Threads that compute the next step."""
        return self._choice.threads

    def computed(self, elapsed_ms: float, alone_ms: float) -> bool:
        """A step was computed, which would have taken `alone_ms` on all threads. Returns whether that
        teaches what steps cost: not where cores were lost for the moment. The number of threads may be
        another now."""
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
        """For steps that are timed while nobody wants anything."""
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
        self._tell()

    def _seen(self) -> CoresSeen:
        return CoresSeen(
            lost=tuple(lost_s / self._elapsed_s for lost_s in self._lost_s.values()),
            free=self._free() if self.count < self._threads.most else 0.0,
            speed=self._alone_s / self._elapsed_s,
            elapsed_s=self._elapsed_s,
            throttled=(self._threads.throttled_s() - self._throttled_s) / self._elapsed_s,
        )

    def _free(self) -> float:
        span_s = max(self._clock() - self._began_s, self._elapsed_s)
        own_idle_s = self.count * (span_s - self._elapsed_s)
        return (self._threads.idle_s() - self._idle_s - own_idle_s) / span_s

    def _tell(self) -> None:
        now_s = self._clock()
        if self.count != self._told and now_s - self._told_s >= _TELL_S:
            self._told, self._told_s = self.count, now_s
            is_all = self.count == self._choice.most
            by_quota = "the control group's quota of CPU time is used up"
            reason = by_quota if self.is_throttled else "others use the cores"
            why = "all have their cores again" if is_all else reason
            logger.info("threads that compute: %d of %d (%s)", self.count, self._choice.most, why)
