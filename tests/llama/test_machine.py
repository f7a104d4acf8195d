"""Limits of control groups, NUMA nodes and cores, read from folders that look like those of Linux."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from openai_cpu_server.llama.host import ComputeThreads, Machine, cores_of, usable_cpus, usable_nodes

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


def test_a_machine_without_limits_has_the_memory_of_the_system(tmp_path: Path) -> None:
    unlimited = machine(tmp_path, "0::/\n", {"memory.max": "max\n", "cpu.max": "max 100000\n"})
    assert unlimited.free_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.1)
    assert unlimited.num_threads() >= 1
    nowhere = Machine(cgroups=tmp_path / "no", process=tmp_path / "where")
    assert 0 < nowhere.free_memory() <= nowhere.total_memory()


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        (  # the narrowest group on the way up
            "0::/pod/box\n",
            """memory.max: max; pod/memory.max: 64000; pod/memory.current: 32000;
            pod/memory.stat: anon 1\ninactive_file 8000\nactive_file 8000;
            pod/box/memory.max: 90000; pod/box/memory.current: 0""",
            {"free_memory": 64_000 - 32_000 + 16_000},
        ),
        ("0::/box\n", f"memory.max: {GIB // 2}; box/memory.max: max", {"total_memory": GIB // 2}),
        (
            "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n",
            """memory/box/memory.limit_in_bytes: 64000; memory/box/memory.usage_in_bytes: 32000;
            memory/box/memory.stat: inactive_file 5\ntotal_inactive_file 16000;
            cpu,cpuacct/box/cpu.cfs_quota_us: 150000; cpu,cpuacct/box/cpu.cfs_period_us: 100000""",
            {"free_memory": 64_000 - 32_000 + 16_000, "num_threads": 1},
        ),
        (  # where it is slowed down
            "0::/box\n",
            "box/memory.max: 64000; box/memory.high: 32000; box/memory.current: 16000",
            {"free_memory": 16_000, "total_memory": 32_000},
        ),
        ("0::/\n", "memory.max: 1000; memory.current: 2000", {"free_memory": 0}),
        ("0::/\n", "cpu.max: 50000 100000", {"num_threads": 1}),
    ],
)
def test_limits_of_groups(tmp_path: Path, membership: str, files: str, expected: dict[str, int]) -> None:
    contents = dict(file.strip().split(": ") for file in files.split(";"))
    limited = machine(tmp_path, membership, {name: f"{content}\n" for name, content in contents.items()})
    assert {name: getattr(limited, name)() for name in expected} == expected


@pytest.mark.parametrize(
    ("membership", "files", "seconds"),
    [
        (
            "0::/a/b\n",
            {"a/b/cpu.stat": "usage_usec 9\nthrottled_usec 1500000\n", "a/cpu.stat": "nr_periods 1\n"},
            1.5,
        ),
        ("0::/a\n", {"a/cpu.stat": "throttled_usec 1000000\n", "cpu.stat": "throttled_usec 2000000\n"}, 3.0),
        (
            "3:cpu,cpuacct:/a\n",
            {"cpuacct,cpu/a/cpu.stat": "nr_throttled 7\nthrottled_time 2500000000\n"},
            2.5,
        ),
        ("0::/a\n", {}, 0.0),
    ],
)
def test_throttled_time(tmp_path: Path, membership: str, files: dict[str, str], seconds: float) -> None:
    assert machine(tmp_path, membership, files).throttled_s() == seconds


def test_pressure_is_the_groups_own_or_the_systems(tmp_path: Path) -> None:
    lines = (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )
    system = tmp_path / "cpu"
    system.write_text(lines.format(9_000_000))
    machine(tmp_path, "0::/box\n", {"box/cpu.pressure": lines.format(2_500_000)})
    folders = {"cgroups": tmp_path / "cgroups", "process": tmp_path / "process"}
    assert Machine(**folders, pressure=system).cpu_pressure_s() == 2.5
    (tmp_path / "cgroups" / "box" / "cpu.pressure").unlink()
    assert Machine(**folders, pressure=system).cpu_pressure_s() == 9.0
    assert Machine(**folders, pressure=tmp_path / "none").cpu_pressure_s() is None


def test_pressure_counts_where_linux_reports_no_waits_of_threads(tmp_path: Path) -> None:
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\n")
    nowhere = {"cgroups": tmp_path / "no", "process": tmp_path / "no"}
    threads = ComputeThreads(2, machine=Machine(**nowhere, pressure=pressure))
    assert list(threads.waits_s().values()) == [3.0]
    assert ComputeThreads(2, machine=Machine(**nowhere, pressure=tmp_path / "no")).waits_s() == {}


def topology(folder: Path, cores: list[list[int]]) -> Path:
    for core in cores:
        for cpu in core:
            path = folder / f"cpu{cpu}" / "topology" / "core_cpus_list"
            path.parent.mkdir(parents=True)
            path.write_text(",".join(map(str, core)) + "\n")
    return folder


EIGHT_CORES = [[core, core + 8] for core in range(8)]


def test_nodes_have_only_usable_cpus(tmp_path: Path) -> None:
    usable = sorted(usable_cpus())
    for node, cpus in ((0, "1000-1003"), (1, f"{usable[0]},2000")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus)
    found = usable_nodes(tmp_path)
    assert found.pop(1) == [usable[0]]
    assert found == ({0: usable[1:]} if len(usable) > 1 else {}), (
        "CPUs that no node lists belong to the first"
    )
    assert usable_nodes(tmp_path / "absent") == {0: usable}


@pytest.mark.parametrize(
    ("usable", "threads"),
    [
        (range(16), 8),
        ([0, 8, 1, 9], 2),
        ([0, 1, 2, 3, 8, 9, 10, 11], 4),
        ([3, 11], 1),
        ([0, 1, 2, 3], 4),
        ([5], 1),
        ([40, 41], 2),  # the system has no topology for these
    ],
)
def test_a_set_of_cpus_counts_by_its_cores(tmp_path: Path, usable: list[int], threads: int) -> None:
    found = Machine(
        cgroups=tmp_path / "no",
        process=tmp_path / "no",
        topology=topology(tmp_path / "cpu", EIGHT_CORES),
        usable=lambda: usable,
    )
    assert (found.num_threads(), found.num_cpus()) == (threads, len(usable))


def test_older_systems_name_the_threads_of_a_core_otherwise(tmp_path: Path) -> None:
    cpus = topology(tmp_path, [[0, 1], [2, 3]])
    for file in cpus.glob("cpu*/topology/core_cpus_list"):
        file.rename(file.with_name("thread_siblings_list"))
    assert cores_of([0, 1, 3], cpus) == [[0, 1], [3]]
