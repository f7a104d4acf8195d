"""What this process may use of the machine: memory and cores, control groups respected."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


class Machine:
    """Reads the limits afresh at each call. The paths are arguments for the sake of tests."""

    def __init__(self, cgroups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self")) -> None:
        self._cgroups = cgroups
        self._process = process

    def free_memory(self) -> int:
        """Bytes that the system can give without swapping, and that the control groups still allow."""
        return max(0, min([psutil.virtual_memory().available, *self._memory_left()]))

    def total_memory(self) -> int:
        """Bytes that there are for this process and its neighbours, used or not: what its control groups may
        take at most, where that is less than the machine has."""
        names = ("memory.max", "memory.limit_in_bytes")
        limits = [_number(group / name) for group in self._groups("memory") for name in names]
        return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])

    def num_threads(self) -> int:
        """One thread for each physical core, but no more than this process may run on or has a quota for."""
        usable = _usable_cpus()
        physical = psutil.cpu_count(logical=False) or usable
        return max(1, min([usable, physical, *self._cpu_quotas()]))

    def num_cpus(self) -> int:
        """Hardware threads that this process may use at once."""
        return max(1, min([_usable_cpus(), *self._cpu_quotas()]))

    def _memory_left(self) -> list[int]:
        return [
            limit - usage + _reclaimable(group)
            for group in self._groups("memory")
            for limit_name, usage_name in (
                ("memory.max", "memory.current"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            )
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
                root = self._cgroups / controllers if controllers else self._cgroups
                inner = root / name.lstrip("/")
                groups += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
        return groups


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(group: Path) -> tuple[int | None, int | None]:
    """The CPU quota: microseconds of CPU per period of microseconds."""
    fields = " ".join(_lines(group / "cpu.max")).split()
    if len(fields) == 2:
        return (int(fields[0]) if fields[0].isdecimal() else None), int(fields[1])
    return _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")


def _reclaimable(group: Path) -> int:
    """Bytes of file pages that count as used, but are freed when memory is short, as for the whole system."""
    fields = dict(line.split(" ", 1) for line in _lines(group / "memory.stat"))
    names = ("inactive_file", "active_file")
    return sum(int(fields.get(f"total_{name}", fields.get(name, "0"))) for name in names)


def _number(path: Path) -> int | None:
    """The number in a file; None for "max" and if there is no such file."""
    text = " ".join(_lines(path))
    return int(text) if text.lstrip("-").isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError:
        return []
