"""Facts besides the code on which the numbers depend."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import psutil

from bench.contestants import Contestant, Room
from bench.results import Circumstances

_ROOT = Path(__file__).resolve().parents[2]
_CPU_INFO = Path("/proc/cpuinfo")
_ROOMS = (Room(pool_tokens=8192, request_tokens=1000), Room(pool_tokens=16384, request_tokens=2000))


def circumstances(
    model: Path,
    *,
    rounds: int,
    is_quick: bool,
    contestants: Sequence[Contestant] = (),
    absent: Sequence[str] = (),
) -> Circumstances:
    return Circumstances(
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        model=model.name,
        commit=_commit(),
        cpu=cpu_name(),
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        rounds=rounds,
        is_quick=is_quick,
        servers={who.label: shown(who, model) for who in contestants},
        absent=tuple(absent),
    )


def shown(who: Contestant, model: Path) -> str:
    """Return a server's command, with `{room}` where workloads differ, and file names instead of paths."""
    one, other = (who.spec(model, room).command for room in _ROOMS)
    command = (part if part == same else "{room}" for part, same in zip(one, other, strict=True))
    return " ".join(Path(part).name if "/" in part else part for part in command)


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty=+", "--abbrev=10"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def cpu_name() -> str:
    if _CPU_INFO.is_file():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
