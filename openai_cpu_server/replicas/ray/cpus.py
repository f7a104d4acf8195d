"""CPUs of a machine, divided between the engine replicas on it.

Ray counts CPUs and gives nobody any in particular. Two replicas that computed on the same ones would wait for
each other, so each claims its own: a lock on a file for each, which the system frees when the process dies.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from openai_cpu_server.private_files import private_folder

_NODES = Path("/sys/devices/system/node")


class CpuClaim:
    """The CPUs that this process has claimed, until it ends."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where the locks are, the same for all on the machine."""
        self._folder = folder or Path(tempfile.gettempdir()) / f"openai-cpu-server-cpus-{os.getuid()}"
        self._locks: dict[int, int] = {}

    def claim(self, num: int, usable: Iterable[int], nodes: Mapping[int, int]) -> tuple[int, ...]:
        """So many CPUs of those that are usable and free, on as few NUMA nodes as can be; (): there are not
        enough. `nodes`: by CPU, its node."""
        private_folder(self._folder)
        with (self._folder / "claiming.lock").open("w") as others:
            fcntl.flock(others, fcntl.LOCK_EX)  # one at a time: it takes a millisecond
            for cpu in usable:
                self._lock(cpu)
            chosen = choose_cpus(num, list(self._locks), nodes)
            for cpu in [cpu for cpu in self._locks if cpu not in chosen]:
                os.close(self._locks.pop(cpu))
        return chosen

    def release(self) -> None:
        """All are free again."""
        while self._locks:
            os.close(self._locks.popitem()[1])

    def _lock(self, cpu: int) -> None:
        descriptor = os.open(self._folder / f"{cpu}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return
        self._locks[cpu] = descriptor


def choose_cpus(num: int, free: Iterable[int], nodes: Mapping[int, int]) -> tuple[int, ...]:
    """(): there are not enough. The node where least is left over is best, if one is enough."""
    by_node: dict[int, list[int]] = {}
    for cpu in sorted(free):
        by_node.setdefault(nodes.get(cpu, 0), []).append(cpu)
    enough = [cpus for cpus in by_node.values() if len(cpus) >= num]
    if enough:
        return tuple(min(enough, key=len)[:num])
    largest_first = [cpu for cpus in sorted(by_node.values(), key=len, reverse=True) for cpu in cpus]
    return tuple(largest_first[:num]) if len(largest_first) >= num else ()


def numa_nodes(folder: Path = _NODES) -> dict[int, int]:
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
