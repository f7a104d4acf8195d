"""Memory and CPU of a process and its children, sampled while a workload runs."""

from __future__ import annotations

import contextlib
import threading
import time

import msgspec
import psutil

_EVERY_S = 0.5


class TreeUse(msgspec.Struct, frozen=True, kw_only=True):
    ready_s: float = 0.0
    ready_rss_bytes: int = 0
    peak_rss_bytes: int
    """Sum of all processes. Pages of a mapped model file that two share count twice."""
    cpu_s: float
    """CPU time of all processes during the workload."""
    wall_s: float


class TreeSampler:
    """Samples from its construction until `stop`."""

    def __init__(self, pid: int, ready_s: float = 0.0) -> None:
        self._root = psutil.Process(pid)
        self._ready_s = ready_s
        self._start = time.perf_counter()
        self._peak_rss = 0
        self._cpu: dict[int, float] = {}
        self._sample()
        self._ready_rss, self._ready_cpu = self._peak_rss, sum(self._cpu.values())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> TreeUse:
        """Stop sampling. Call it while the processes still live."""
        self._ended.set()
        self._thread.join()
        return TreeUse(
            ready_s=self._ready_s,
            ready_rss_bytes=self._ready_rss,
            peak_rss_bytes=self._peak_rss,
            cpu_s=sum(self._cpu.values()) - self._ready_cpu,
            wall_s=time.perf_counter() - self._start,
        )

    def _watch(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(_EVERY_S)
            self._sample()

    def _sample(self) -> None:
        rss = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system  # of one that died: what it had
                rss += process.memory_info().rss
        self._peak_rss = max(self._peak_rss, rss)


def cpu_seconds(pid: int) -> float:
    """Return CPU seconds so far of a process and its children."""
    return sum(cpu_by_process(pid).values())


def cpu_by_process(pid: int) -> dict[int, float]:
    """Return CPU seconds so far of a process and of each of its children."""
    root = psutil.Process(pid)
    times = {process.pid: process.cpu_times() for process in [root, *root.children(recursive=True)]}
    return {each: t.user + t.system for each, t in times.items()}
