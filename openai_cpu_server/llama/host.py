"""The machine: the memory and cores that this process may use, the threads that compute on these, and how
busy other processes keep it. It loads no llama.cpp."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_MOST_LOOKS = 16
"""Linux books the time of a thread when it stops, or with the next tick: after a step of microseconds nothing
is seen."""


class ComputeThreads:
    """How many threads compute, on which cores, and how long they have waited for these.

    They meet after each of some hundred operations of a step, and wait until the last has come. Where there
    are as many as cores, each is bound to one: else Linux puts two of them on one core for seconds on a busy
    machine, and each meeting takes a time slice (measured: steps of 10 ms took 630). Fewer threads than cores
    are left to the kernel, which finds free ones.

    One object serves all contexts that one thread computes with, because llama.cpp's threads do.
    """

    def __init__(
        self,
        most: int,
        *,
        may_bind: bool = True,
        stat: Path = Path("/proc/stat"),
        machine: Machine | None = None,
    ) -> None:
        """`most` counts the computing threads, the caller's included. `stat` and `machine`: for the sake of
        tests."""
        self.most = self.count = most
        self._machine = machine or Machine()
        self._quota_files = self._machine.quota_files()
        self._may_bind = may_bind
        self._stat = stat
        self._cpus = sorted(usable_cpus())
        self._cores = cores_of(self._cpus)
        self._workers: set[int] = set()
        """The other threads that compute, as far as they were seen to."""
        self._seen: set[int] = set()
        """All that ever were."""
        self._looks = 0
        """For them, since their number is what it is."""
        self._delays: dict[int, _RunDelay] = {}
        """Of these and the caller's."""
        self._is_settled = False
        """It is known which threads compute, and each is where it should be."""
        self._own: Collection[int] | None = None
        """The core of the calling thread, as its CPUs, if each thread has one."""

    def use(self, count: int) -> None:
        """Compute with so many threads from the next computation on."""
        assert 1 <= count <= self.most
        if count != self.count:
            self.count, self._own, self._is_settled, self._looks = count, None, False, 0
            for thread in self._workers if self._may_bind else ():
                _bind(thread, self._cpus)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Wrap this around each computation. The first one with more threads starts them.

        The caller is bound only inside, so that threads which it starts in between inherit nothing.
        """
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
        """By thread, seconds in which it was ready and had no core, so far; {} where the system does not
        tell. Where it tells of no thread, those in which any of the control group's had none (PSI) are the
        caller's."""
        told = {thread: delay.total_s() for thread, delay in self._delays.items()}
        waits_s = {thread: waited_s for thread, waited_s in told.items() if waited_s is not None}
        if not waits_s and (pressure_s := self._machine.cpu_pressure_s()) is not None:
            return {threading.get_native_id(): pressure_s}
        return waits_s

    def throttled_s(self) -> float:
        """Seconds in which all stood still because their control groups' quota was used up, so far."""
        return sum(map(_throttled_s, self._quota_files)) / self.most

    def idle_s(self) -> float:
        """Seconds in which the CPUs that may be used had nothing to do, all of them together, so far."""
        names = {f"cpu{cpu}" for cpu in self._cpus}
        ticks = (line.split() for line in _lines(self._stat) if line.startswith("cpu"))
        idle = sum(int(fields[4]) + int(fields[5]) for fields in ticks if fields[0] in names)
        return idle / os.sysconf("SC_CLK_TCK")

    def _first(self) -> Iterator[None]:
        before = _native_threads()
        yield
        ran_ns = {thread: ran_ns - before.get(thread, -1) for thread, ran_ns in _native_threads().items()}
        # ggml's may be there already, for whoever has computed in this process before.
        computed = [thread for thread in ran_ns if ran_ns[thread] > 0 or thread in self._seen]
        computed.sort(key=ran_ns.__getitem__, reverse=True)
        self._workers = set(computed[: self.count - 1])
        self._seen |= self._workers
        self._looks += 1
        self._is_settled = len(self._workers) == self.count - 1 or self._looks >= _MOST_LOOKS
        watched = self._workers | {threading.get_native_id()}
        self._delays = {thread: self._delays.get(thread) or _RunDelay(thread) for thread in watched}
        if self._may_bind and 1 < self.count == 1 + len(self._workers):
            self._place()

    def _place(self) -> None:
        """Give each thread a core, or a hyper-thread where there are as many as these."""
        places = self._cores if self.count == len(self._cores) else [[cpu] for cpu in self._cpus]
        if self.count != len(places):
            return
        own, *others = places
        placed = [_bind(thread, core) for thread, core in zip(sorted(self._workers), others, strict=True)]
        self._own = own if all(placed) else None


class _RunDelay:
    """How long a thread of this process has waited for a core, while it could run."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        told = _schedstat(thread)
        self._before_ns = told[1] if told is not None else 0

    def total_s(self) -> float | None:
        """Since it is watched; None: it has ended, or the system does not tell."""
        told = _schedstat(self._thread)
        return None if told is None else (told[1] - self._before_ns) / 1e9


def _schedstat(thread: int) -> tuple[int, int] | None:
    """How many ns a thread of this process has run, and waited for a core; None: it has ended, or the system
    does not tell."""
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
    """The hardware threads that may be used; empty where threads cannot be bound."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else ()


def cores_of(cpus: Iterable[int], topology: Path = CPUS) -> list[list[int]]:
    """The cores of these CPUs, each as those of its hyper-threads that are among them. A CPU of which the
    system says nothing is a core."""
    cores: dict[object, list[int]] = {}
    for cpu in sorted(cpus):
        folder = topology / f"cpu{cpu}" / "topology"
        told = _lines(folder / "core_cpus_list") or _lines(folder / "thread_siblings_list")
        cores.setdefault(tuple(told) or cpu, []).append(cpu)
    return list(cores.values())


def _native_threads() -> dict[int, int]:
    """The ids of this process's threads that Python did not start, and how many ns each has run; 0 where the
    system does not tell."""
    ours = {thread.native_id for thread in threading.enumerate()}
    native = [thread.id for thread in psutil.Process().threads() if thread.id not in ours]
    return {thread: (_schedstat(thread) or (0, 0))[0] for thread in native}


def _bind(thread: int, cores: Collection[int]) -> bool:
    """Bind a thread, 0: the calling one; False if the thread or a core is gone, or this system binds none."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:
        return False
    return True


NODES = Path("/sys/devices/system/node")


def numa_nodes(folder: Path = NODES) -> dict[int, int]:
    """By CPU, its node. {}: the machine has none, or does not say."""
    nodes = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        node = int(path.parent.name.removeprefix("node"))
        nodes.update(dict.fromkeys(_listed(path.read_text()), node))
    return nodes


def _listed(text: str) -> list[int]:
    """`0-3,8` -> 0 1 2 3 8."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def usable_nodes(folder: Path = NODES) -> dict[int, list[int]]:
    """By NUMA node, those of its CPUs that this process may run on; nodes without any are left out."""
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
"""What bounds a control group's memory -> what it uses of it. Beyond `memory.high` nothing is killed, but all
that asks for more is slowed down until it is of no use."""


class Machine:
    """Reads the limits afresh at each call. Paths and CPUs are arguments for the sake of tests."""

    def __init__(
        self,
        cgroups: Path = Path("/sys/fs/cgroup"),
        process: Path = Path("/proc/self"),
        topology: Path = CPUS,
        usable: Callable[[], Collection[int]] = usable_cpus,
        pressure: Path = Path("/proc/pressure/cpu"),
    ) -> None:
        """`usable`: the CPUs that the process may run on."""
        self._pressure = pressure
        self._cgroups = cgroups
        self._process = process
        self._topology = topology
        self._usable = usable

    def free_memory(self) -> int:
        """Bytes that the system can give without swapping, and that the control groups still allow."""
        return max(0, min([psutil.virtual_memory().available, *self._memory_left()]))

    def total_memory(self) -> int:
        """Bytes that there are for this process and its neighbours, used or not: what its control groups may
        take at most, where that is less than the machine has."""
        limits = [_number(group / name) for group in self._groups("memory") for name in _MEMORY_LIMITS]
        return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])

    def num_threads(self) -> int:
        """One thread for each core that this process may run on, but no more than it has a quota for: the
        hyper-threads of a core are one."""
        cores = len(cores_of(self._usable(), self._topology))
        return max(1, min([cores or psutil.cpu_count(logical=False) or 1, *self._cpu_quotas()]))

    def num_cpus(self) -> int:
        """Hardware threads that this process may use at once."""
        return max(1, min([len(self._usable()) or os.cpu_count() or 1, *self._cpu_quotas()]))

    def throttled_s(self) -> float:
        """Seconds in which CPUs were kept from this process's control groups because their quota was used up,
        so far: for all of these CPUs together. 0.0 without a quota."""
        return sum(map(_throttled_s, self.quota_files()))

    def quota_files(self) -> list[Path]:
        """Those that tell of it, for who looks often."""
        return [file for group in self._groups("cpu") if (file := group / "cpu.stat").exists()]

    def cpu_pressure_s(self) -> float | None:
        """Seconds in which something in this process's control group, else on the machine, was ready and had
        no core, so far; None: Linux does not tell (PSI)."""
        groups = [group / "cpu.pressure" for group in self._groups("cpu")[:1]]
        for file in (*groups, self._pressure):
            for line in _lines(file):
                kind, *fields = line.split()
                told = dict(field.partition("=")[::2] for field in fields)
                if kind == "some" and told.get("total", "").isdecimal():
                    return int(told["total"]) / 1e6
        return None

    def _memory_left(self) -> list[int]:
        return [
            limit - usage + _reclaimable(group)
            for group in self._groups("memory")
            for limit_name, usage_name in _MEMORY_LIMITS.items()
            if (limit := _number(group / limit_name)) is not None
            and (usage := _number(group / usage_name)) is not None
        ]

    def _cpu_quotas(self) -> list[int]:
        quotas = []
        for group in self._groups("cpu"):
            quota, period = _quota(group)
            if quota is not None and period and quota > 0:
                quotas.append(quota // period)
        return quotas

    def _groups(self, controller: str) -> list[Path]:
        """The process's control group and those around it, up to the mounted root."""
        groups: list[Path] = []
        for line in _lines(self._process / "cgroup"):
            _, controllers, name = line.split(":", 2)
            if controllers == "" or controller in controllers.split(","):
                root = self._mounted(controllers.split(","), controller)
                inner = root / name.lstrip("/")
                groups += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
        return groups

    def _mounted(self, together: list[str], controller: str) -> Path:
        """Where the first version mounts controllers that belong together: the folder has their names in any
        order, or there is one for each. The second version has no names, and one folder."""
        if together == [""]:
            return self._cgroups
        wanted = sorted(together)
        folders = sorted(self._cgroups.iterdir()) if self._cgroups.is_dir() else []
        return next(
            (folder for folder in folders if sorted(folder.name.split(",")) == wanted),
            self._cgroups / controller,
        )


def _quota(group: Path) -> tuple[int | None, int | None]:
    """The CPU quota: microseconds of CPU per period of microseconds."""
    fields = " ".join(_lines(group / "cpu.max")).split()
    if len(fields) == 2:
        return (int(fields[0]) if fields[0].isdecimal() else None), int(fields[1])
    return _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")


def _throttled_s(file: Path) -> float:
    """Of the second version, which counts microseconds, or of the first with its nanoseconds."""
    stat = dict(_pairs(file))
    return stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9


def _pairs(path: Path) -> Iterator[tuple[str, int]]:
    """The names and numbers of a file's lines."""
    for line in _lines(path):
        name, _, number = line.partition(" ")
        if number.isdecimal():
            yield name, int(number)


def _reclaimable(group: Path) -> int:
    """Bytes of file pages that count as used, but are freed when memory is short, as for the whole system."""
    fields = dict(_pairs(group / "memory.stat"))
    names = ("inactive_file", "active_file")
    return sum(fields.get(f"total_{name}", fields.get(name, 0)) for name in names)


def _number(path: Path) -> int | None:
    """The number in a file; None for "max" and if there is no such file."""
    text = " ".join(_lines(path))
    return int(text) if text.lstrip("-").isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError:
        return []


NOISY = 0.15
"""If others take at least this share of the machine, measurements are not trusted."""


class OtherProcesses:
    """Measures other processes' share of all cores since the last question (or since the beginning)."""

    def __init__(self) -> None:
        self._before = _cpu_seconds()

    def share(self) -> float:
        """Their share, 0 to 1."""
        (total, busy, own), (total_before, busy_before, own_before) = (now := _cpu_seconds()), self._before
        self._before = now
        others = (busy - busy_before) - (own - own_before)
        return min(max(others / max(total - total_before, 1e-3), 0.0), 1.0)


def _cpu_seconds() -> tuple[float, float, float]:
    """Seconds of all cores so far: in total, not idle, and used by this process and its ended children."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    process = psutil.Process().cpu_times()
    own = process.user + process.system + process.children_user + process.children_system
    return total, total - idle, own
