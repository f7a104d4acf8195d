"""Limits of control groups, read from folders that look like them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from openai_cpu_server.llama.host import Machine

GIB = 2**30


def machine(folder: Path, membership: str, files: dict[str, str]) -> Machine:
    process = folder / "process"
    process.mkdir()
    (process / "cgroup").write_text(membership)
    for name, content in files.items():
        path = folder / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return Machine(cgroups=folder / "cgroups", process=process)


def test_without_limits_the_system_counts(tmp_path: Path) -> None:
    unlimited = machine(tmp_path, "0::/\n", {"memory.max": "max\n", "cpu.max": "max 100000\n"})
    assert unlimited.free_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.1)
    assert unlimited.num_threads() >= 1
    assert Machine(cgroups=tmp_path / "no", process=tmp_path / "where").free_memory() > 0


def test_the_narrowest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "memory.max": "max\n",
        "pod/memory.max": f"{GIB // 64}\n",
        "pod/memory.current": f"{GIB // 128}\n",
        "pod/memory.stat": f"anon 1\ninactive_file {GIB // 512}\nactive_file {GIB // 512}\n",
        "pod/box/memory.max": f"{GIB // 2}\n",
        "pod/box/memory.current": "0\n",
    }
    assert machine(tmp_path, "0::/pod/box\n", files).free_memory() == GIB // 64 - GIB // 128 + GIB // 256


def test_a_container_has_what_its_group_may_take(tmp_path: Path) -> None:
    files = {"memory.max": f"{GIB // 2}\n", "box/memory.max": "max\n"}
    assert machine(tmp_path, "0::/box\n", files).total_memory() == GIB // 2
    assert Machine(cgroups=tmp_path / "no", process=tmp_path / "where").total_memory() > 4 * GIB // 8


def test_version_one_of_control_groups(tmp_path: Path) -> None:
    files = {
        "memory/box/memory.limit_in_bytes": f"{GIB // 32}\n",
        "memory/box/memory.usage_in_bytes": f"{GIB // 64}\n",
        "memory/box/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 128}\n",
        "cpu,cpuacct/box/cpu.cfs_quota_us": "150000\n",
        "cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
    }
    limited = machine(tmp_path, "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n", files)
    assert limited.free_memory() == GIB // 64 + GIB // 128
    assert limited.num_threads() == 1


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    files = {"memory.max": "1000\n", "memory.current": "2000\n"}
    assert machine(tmp_path, "0::/\n", files).free_memory() == 0


@pytest.mark.parametrize(
    ("quota", "most"), [("100000", 1), ("50000", 1), ("99900000", psutil.cpu_count() or 1)]
)
def test_a_quota_of_cpu_time_limits_the_threads_and_adds_none(tmp_path: Path, quota: str, most: int) -> None:
    assert 1 <= machine(tmp_path, "0::/\n", {"cpu.max": f"{quota} 100000\n"}).num_threads() <= most
