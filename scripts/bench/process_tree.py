"""Memory and CPU of a process and its children, sampled while a workload runs."""

from __future__ import annotations

import contextlib
import threading
import time

import msgspec
import psutil

_EVERY_S = 0.5


class TreeUse(msgspec.Struct, frozen=True, kw_only=True):
    peak_rss_bytes: int
    """Of all processes together; pages of a mapped model file that two share count twice."""
    cpu_s: float
    wall_s: float


class TreeSampler:
    """Watches from construction to `stop`."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._start = time.perf_counter()
        self._peak_rss = 0
        self._cpu: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> TreeUse:
        """Call it while the processes still live."""
        self._ended.set()
        self._thread.join()
        wall_s = time.perf_counter() - self._start
        return TreeUse(peak_rss_bytes=self._peak_rss, cpu_s=sum(self._cpu.values()), wall_s=wall_s)

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
