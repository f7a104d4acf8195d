"""Memory, cores and compute threads. Loads no llama.cpp."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_MOST_LOOKS = 16
"""Linux accounts a thread's time when it stops or at a tick, so a step of microseconds may show nothing."""


class ComputeThreads:
    """Compute threads, their cores, and their time waiting for these. Shared by all contexts of a thread.

    As many threads as cores are bound to one each: Linux may put two on one core for seconds (steps of 10 ms
    took 630).
    """

    def __init__(self, most: int, *, may_bind: bool = True, machine: Machine | None = None) -> None:
        """`most`: includes the caller."""
        self.most = self.count = most
        self._machine = machine or Machine()
        self._quota_files = self._machine.quota_files()
        self._may_bind = may_bind
        self._cpus = sorted(usable_cpus())
        self._cores = cores_of(self._cpus)
        self._workers: set[int] = set()
        self._seen: set[int] = set()
        """Compute threads seen at any number of threads."""
        self._looks = 0
        """Since the last change of the number."""
        self._waited_ns: dict[int, int] = {}
        """Nanoseconds at the first observation."""
        self._is_settled = False
        self._own: Collection[int] | None = None
        """CPUs of the caller's core, or None if threads are not bound."""

    def use(self, count: int) -> None:
        assert 1 <= count <= self.most
        if count != self.count:
            self.count, self._own, self._is_settled, self._looks = count, None, False, 0
            for thread in self._workers if self._may_bind else ():
                _bind(thread, self._cpus)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The caller is bound only inside, so that its own threads do not inherit that."""
        if not self._is_settled:
            yield from self._first()
        elif self._own is None:
            yield
        else:
            _bind(0, self._own)
            try:
                yield
            finally:
                _bind(0, self._cpus)

    def waits_s(self) -> dict[int, float]:
        """Seconds ready without a core by thread; {} if unknown.

        Else the control group's (PSI) count as the caller's.
        """
        now = ((thread, _schedstat(thread)) for thread in self._waited_ns)
        waits_s = {thread: (ns[1] - self._waited_ns[thread]) / 1e9 for thread, ns in now if ns is not None}
        if not waits_s and (pressure_s := self._machine.cpu_pressure_s()) is not None:
            return {threading.get_native_id(): pressure_s}
        return waits_s

    def throttled_s(self) -> float:
        return sum(map(_throttled_s, self._quota_files)) / self.most

    def idle_s(self) -> float:
        names = {f"cpu{cpu}" for cpu in self._cpus}
        ticks = (line.split() for line in _lines(Path("/proc/stat")) if line.startswith("cpu"))
        idle = sum(int(fields[4]) + int(fields[5]) for fields in ticks if fields[0] in names)
        return idle / os.sysconf("SC_CLK_TCK")

    def _first(self) -> Iterator[None]:
        before = _native_threads()
        yield
        ran_ns = {thread: ran_ns - before.get(thread, -1) for thread, ran_ns in _native_threads().items()}
        # ggml's threads exist already if this process has computed before.
        computed = [thread for thread in ran_ns if ran_ns[thread] > 0 or thread in self._seen]
        computed.sort(key=ran_ns.__getitem__, reverse=True)
        self._workers = set(computed[: self.count - 1])
        self._seen |= self._workers
        self._looks += 1
        self._is_settled = len(self._workers) == self.count - 1 or self._looks >= _MOST_LOOKS
        threads = self._workers | {threading.get_native_id()}
        before_ns = self._waited_ns
        self._waited_ns = {
            thread: before_ns[thread] if thread in before_ns else (_schedstat(thread) or (0, 0))[1]
            for thread in threads
        }
        if self._may_bind and 1 < self.count == 1 + len(self._workers):
            self._place()

    def _place(self) -> None:
        """Bind one thread to each core, or to each hyper-thread if there are as many."""
        places = self._cores if self.count == len(self._cores) else [[cpu] for cpu in self._cpus]
        if self.count != len(places):
            return
        own, *others = places
        placed = [_bind(thread, core) for thread, core in zip(sorted(self._workers), others, strict=True)]
        self._own = own if all(placed) else None


def _schedstat(thread: int) -> tuple[int, int] | None:
    """Nanoseconds run and waited, or None if unknown."""
    try:  # not `Path.read_text`, which takes five times as long
        descriptor = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:
        return None
    try:
        ran, waited, _ = os.read(descriptor, 64).split()
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    return int(ran), int(waited)


CPUS = Path("/sys/devices/system/cpu")


def usable_cpus() -> Collection[int]:
    """Return () if threads cannot be bound."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else ()


def cores_of(cpus: Iterable[int], topology: Path = CPUS) -> list[list[int]]:
    cores: dict[object, list[int]] = {}
    for cpu in sorted(cpus):
        folder = topology / f"cpu{cpu}" / "topology"
        siblings = _lines(folder / "core_cpus_list") or _lines(folder / "thread_siblings_list")
        cores.setdefault(tuple(siblings) or cpu, []).append(cpu)
    return list(cores.values())


def _native_threads() -> dict[int, int]:
    """Nanoseconds run by each thread which Python did not start."""
    ours = {thread.native_id for thread in threading.enumerate()}
    native = [thread.id for thread in psutil.Process().threads() if thread.id not in ours]
    return {thread: (_schedstat(thread) or (0, 0))[0] for thread in native}


def _bind(thread: int, cores: Collection[int]) -> bool:
    """Thread 0 is the calling one."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:
        return False
    return True


NODES = Path("/sys/devices/system/node")


def numa_nodes(folder: Path = NODES) -> dict[int, int]:
    """Return the node of each CPU, or {} if unknown."""
    nodes = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        node = int(path.parent.name.removeprefix("node"))
        for part in filter(None, path.read_text().strip().split(",")):
            first, _, last = part.partition("-")
            nodes.update(dict.fromkeys(range(int(first), int(last or first) + 1), node))
    return nodes


def usable_nodes(folder: Path = NODES) -> dict[int, list[int]]:
    nodes: dict[int, list[int]] = {}
    places = numa_nodes(folder)
    for cpu in sorted(usable_cpus()):
        nodes.setdefault(places.get(cpu, 0), []).append(cpu)
    return nodes


_MEMORY_LIMITS = {
    "memory.max": "memory.current",
    "memory.high": "memory.current",
    "memory.limit_in_bytes": "memory.usage_in_bytes",
}
"""Limit -> usage. Beyond `memory.high` allocations are too slow to be useful."""


@dataclass(frozen=True)
class Machine:
    cgroups: Path = Path("/sys/fs/cgroup")
    process: Path = Path("/proc/self")
    topology: Path = CPUS
    usable: Callable[[], Collection[int]] = usable_cpus
    pressure: Path = Path("/proc/pressure/cpu")

    def free_memory(self) -> int:
        """Bytes available without swapping, within the control groups' limits."""
        left = [psutil.virtual_memory().available]
        for group in self._groups("memory"):
            stat = dict(_pairs(group / "memory.stat"))
            # Pages of files count as used, but are freed when memory is short.
            file_pages = sum(
                stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file")
            )
            for limit_name, usage_name in _MEMORY_LIMITS.items():
                limit, usage = _number(group / limit_name), _number(group / usage_name)
                if limit is not None and usage is not None:
                    left.append(limit - usage + file_pages)
        return max(0, min(left))

    def total_memory(self) -> int:
        limits = [_number(group / name) for group in self._groups("memory") for name in _MEMORY_LIMITS]
        return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])

    def num_threads(self) -> int:
        """Usable cores, at most the CPU quota."""
        cores = len(cores_of(self.usable(), self.topology))
        return max(1, min([cores or psutil.cpu_count(logical=False) or 1, *self._cpu_quotas()]))

    def num_cpus(self) -> int:
        """Hardware threads usable at once."""
        return max(1, min([len(self.usable()) or os.cpu_count() or 1, *self._cpu_quotas()]))

    def throttled_s(self) -> float:
        """CPU seconds withheld by exhausted quotas."""
        return sum(map(_throttled_s, self.quota_files()))

    def quota_files(self) -> list[Path]:
        return [file for group in self._groups("cpu") if (file := group / "cpu.stat").exists()]

    def cpu_pressure_s(self) -> float | None:
        """Seconds that tasks of the control group, else the machine, waited for cores (PSI)."""
        groups = [group / "cpu.pressure" for group in self._groups("cpu")[:1]]
        for file in (*groups, self.pressure):
            for line in _lines(file):
                kind, *fields = line.split()
                values = dict(field.partition("=")[::2] for field in fields)
                if kind == "some" and values.get("total", "").isdecimal():
                    return int(values["total"]) / 1e6
        return None

    def _cpu_quotas(self) -> list[int]:
        quotas = []
        for group in self._groups("cpu"):
            fields = " ".join(_lines(group / "cpu.max")).split()
            if len(fields) == 2:
                quota, period = (int(field) if field.isdecimal() else None for field in fields)
            else:
                quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
            if quota is not None and period and quota > 0:
                quotas.append(quota // period)
        return quotas

    def _groups(self, controller: str) -> list[Path]:
        """Control group of the process and its ancestors."""
        groups: list[Path] = []
        for line in _lines(self.process / "cgroup"):
            _, controllers, name = line.split(":", 2)
            if controllers == "" or controller in controllers.split(","):
                root = self._mounted(controllers.split(","), controller)
                inner = root / name.lstrip("/")
                groups += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
        return groups

    def _mounted(self, together: list[str], controller: str) -> Path:
        """cgroup v1 mounts controllers together in a folder with their names in any order, or alone."""
        if together == [""]:
            return self.cgroups
        wanted = sorted(together)
        folders = sorted(self.cgroups.iterdir()) if self.cgroups.is_dir() else []
        return next(
            (folder for folder in folders if sorted(folder.name.split(",")) == wanted),
            self.cgroups / controller,
        )


def _throttled_s(file: Path) -> float:
    """cgroup v2 counts microseconds, v1 nanoseconds."""
    stat = dict(_pairs(file))
    return stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9


def _pairs(path: Path) -> Iterator[tuple[str, int]]:
    for line in _lines(path):
        name, _, number = line.partition(" ")
        if number.isdecimal():
            yield name, int(number)


def _number(path: Path) -> int | None:
    """Return None for "max" or a missing file."""
    text = " ".join(_lines(path))
    return int(text) if text.lstrip("-").isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError:
        return []


NOISY = 0.15
"""Share of the machine from which other processes spoil measurements."""


class OtherProcesses:
    def __init__(self) -> None:
        self._before = _cpu_seconds()

    def share(self) -> float:
        (total, busy, own), (total_before, busy_before, own_before) = (now := _cpu_seconds()), self._before
        self._before = now
        others = (busy - busy_before) - (own - own_before)
        return min(max(others / max(total - total_before, 1e-3), 0.0), 1.0)


def _cpu_seconds() -> tuple[float, float, float]:
    """Seconds of all cores: total, busy, and used by this process and its ended children."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    process = psutil.Process().cpu_times()
    own = process.user + process.system + process.children_user + process.children_system
    return total, total - idle, own
