"""Number of compute threads, and the turn to compute where engines share the cores. Threads wait for each
other after each operation, so one without a core delays all."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from openai_cpu_server.contract.messages import (
    ALONE,
    CpuToken,
    CpuTokenReturned,
    EngineWants,
    Sharing,
    ShortenCpuToken,
)
from openai_cpu_server.contract.model_info import ThreadControl
from openai_cpu_server.contract.request import Priority

logger = logging.getLogger(__name__)

_LOST = 0.3
"""Share of the time that a thread waits for a lost core. A busy stranger takes a half; API process and
clients take at most 0.2 (docs/tuning.md)."""
_FREE = 0.6
"""Idle cores needed for trying another thread."""
_NOT_SLOWER = 0.95
"""Relative speed that counts as equally fast."""
_WAIT_S, _MOST_WAIT_S = 0.25, 0.8
"""Initial pause after a failed trial of idle cores, and its maximum. It doubles each time, so free cores are
used within a second."""
_SELDOM, _SELDOM_S = 20.0, 1.0
"""Pause after a failed trial of fewer threads, as a multiple of the observed time, and its minimum. Another
thread is tried as often, because a stranger may give way."""
_MUCH_MORE = 1.5
"""Relative loss after which another trial is worthwhile."""


class CoresSeen(NamedTuple):
    lost: tuple[float, ...]
    """Share of the time, by thread, ready but without a core."""
    free: float
    """Cores that no process used, without those that this engine left idle."""
    speed: float
    """Relative speed of all threads, by the cost model."""
    elapsed_s: float
    throttled: float = 0.0
    """Share of the time in which a quota stopped all threads."""

    @property
    def most_lost(self) -> float:
        return max(self.lost, default=0.0)

    @property
    def is_disturbed(self) -> bool:
        return self.most_lost >= _LOST


@dataclass(frozen=True)
class _ThreadChange:
    threads: int
    seen: CoresSeen


class ThreadChoice:
    """A change that makes steps slower is taken back."""

    def __init__(self, most: int) -> None:
        self.most = self.threads = most
        self._trial: _ThreadChange | None = None
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
            self._trial = _ThreadChange(self.threads, seen)
            self.threads = wanted
        return self.threads

    def _put_off(self, failed: _ThreadChange, seen: CoresSeen, now_s: float) -> None:
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

    def _has_failed(self, trial: _ThreadChange, seen: CoresSeen) -> bool:
        """The smaller of two equally fast numbers is right. A larger one whose threads get their cores is
        right at any speed."""
        if self.threads < trial.threads:
            return seen.speed < _NOT_SLOWER * trial.seen.speed
        return seen.is_disturbed and _NOT_SLOWER * seen.speed < trial.seen.speed


_LOOK_S = 0.06
"""Some time slices of Linux, which are 3 ms."""
_LOG_S = 10.0


class CoreMonitor:
    def __init__(self, threads: ThreadControl, clock: Callable[[], float]) -> None:
        self._threads = threads
        self._clock = clock
        self._choice = ThreadChoice(threads.most)
        self._waits_s = threads.waits_s()
        self._is_crowded = False
        """True if cores are lost and no other number is better."""
        self.is_throttled = False
        """True if a cgroup's quota took cores."""
        self._logged, self._logged_s = threads.most, -math.inf
        self._begin()

    @property
    def count(self) -> int:
        return self._choice.threads

    def computed(self, elapsed_ms: float, alone_ms: float) -> bool:
        """Record a step that would take `alone_ms` on all threads. Return False if a momentary loss of cores
        distorts its cost."""
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
            reason = by_quota if self.is_throttled else "other processes use the cores"
            why = "all threads have their cores again" if is_all else reason
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


PIECE_S = 0.05
"""Time of loading after which an engine lets others compute."""
_MEMORY_S = 5.0
"""Time constant, in time in which this engine wanted to compute."""
_SLOWEST = 20.0
_LOADING = EngineWants(work=Priority.BATCH, is_loading=True)


class EngineCpuToken:
    """Turn of an engine with its own cores, for the thread that computes: it always has it and sends nothing.
    Waiting raises ConnectionError if the client is gone."""

    @property
    def is_held(self) -> bool:
        return True

    @property
    def is_wanted(self) -> bool:
        """True if another engine's turn is due, in any thread."""
        return False

    @property
    def sharing(self) -> Sharing:
        return ALONE

    def settle(self, work: Priority | None) -> None:
        """Report the work between two steps. Gives the turn back without work, or when another engine is
        due."""

    def computed(self) -> None: ...

    def give_back(self) -> None: ...

    def load_on(self) -> None: ...

    def pass_on(self) -> None: ...


@dataclass(eq=False)
class SharedCpuToken(EngineCpuToken):
    """Turn of one of several engines, for at least one step."""

    send: Callable[[EngineWants | CpuTokenReturned], None]
    _: KW_ONLY
    wake: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards the fields up to `_is_closed`, which the reader thread also changes."""
    _is_held: bool = False
    _granted_s: float = 0.0
    _is_beside_interactive: bool = False
    _has_computed: bool = False
    """True if a step of this turn has ended or none is to begin."""
    _is_closed: bool = False
    _sent: EngineWants = field(default_factory=EngineWants)

    def __post_init__(self) -> None:
        self._until_s = math.inf
        self._slowness = _Slowness(self.clock())

    # -- for the reader ----------------------------------------------------------------------------------

    def granted(self, turn: CpuToken) -> None:
        now_s = self.clock()
        with self._changed:
            self._is_held, self._has_computed = True, False
            self._granted_s = now_s
            self._until_s = math.inf if turn.limit_ms is None else now_s + turn.limit_ms / 1000
            self._is_beside_interactive = turn.beside_interactive
            self._changed.notify_all()
        self.wake()

    def shortened(self, recall: ShortenCpuToken) -> None:
        with self._changed:
            if self._is_held:
                self._until_s = self.clock() + recall.after_ms / 1000

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # -- for the thread that computes --------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        return self._is_held

    @property
    def is_wanted(self) -> bool:
        return self.clock() >= self._until_s

    @property
    def sharing(self) -> Sharing:
        return Sharing(self._is_beside_interactive, self._slowness.factor)

    def settle(self, work: Priority | None) -> None:
        wants = self._sent.work is not None
        if self._is_held:  # up to the turn it has waited
            self._slowness.note(self._granted_s, wants=wants, has=False)
        self._slowness.note(self.clock(), wants=wants, has=self._is_held)
        if self._is_held and (work is None or (self.is_wanted and self._has_computed)):
            self._give_back(EngineWants(work=work))
        else:
            self._send_wants(EngineWants(work=work))

    def computed(self) -> None:
        self._has_computed = True

    def give_back(self) -> None:
        self.settle(None)

    def load_on(self) -> None:
        if not self._is_held:
            self._send_wants(_LOADING)
            self._wait()
        elif self.clock() - self._granted_s >= PIECE_S:
            self.pass_on()

    def pass_on(self) -> None:
        self._give_back(_LOADING)
        self._wait()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_held or self._is_closed)
        if self._is_closed:
            raise ConnectionError("the client is gone")

    def _send_wants(self, wants: EngineWants) -> None:
        if wants != self._sent:
            self._sent = wants
            self.send(wants)

    def _give_back(self, wants: EngineWants) -> None:
        with self._changed:
            self._is_held, self._until_s = False, math.inf
        self._sent = wants
        self.send(CpuTokenReturned(wants=wants))


class _Slowness:
    def __init__(self, now_s: float) -> None:
        self._noted_s = now_s
        self._wanted_s = self._held_s = _MEMORY_S / 5

    def note(self, now_s: float, *, wants: bool, has: bool) -> None:
        seconds = max(0.0, now_s - self._noted_s)
        self._noted_s += seconds
        if wants:
            fading = math.exp(-seconds / _MEMORY_S)
            self._wanted_s = fading * self._wanted_s + seconds
            self._held_s = fading * self._held_s + (seconds if has else 0.0)

    @property
    def factor(self) -> float:
        return min(self._wanted_s / max(self._held_s, 1e-3), _SLOWEST)
