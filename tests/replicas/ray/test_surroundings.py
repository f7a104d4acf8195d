"""Ray's environment, addresses of calls, and CPUs of a machine, divided between replicas on it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from openai_cpu_server.config.folders import export_settings
from openai_cpu_server.llama.host import numa_nodes
from openai_cpu_server.replicas.ray.surroundings import (
    OF_NEW_CLUSTER,
    CpuClaim,
    ReplicaAddress,
    choose_cpus,
    of_replicas,
)


@pytest.fixture(autouse=True)
def unset_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OF_NEW_CLUSTER, *of_replicas()):
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it at the end
        monkeypatch.delenv(name)


def test_engines_run_at_normal_niceness() -> None:
    assert of_replicas()["RAY_worker_niceness"] == "0"


def test_a_variable_that_is_set_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "5")
    monkeypatch.setenv("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "2")
    export_settings(OF_NEW_CLUSTER)
    assert of_replicas()["RAY_worker_niceness"] == "5"
    assert os.environ["RAY_SERVE_CONTROL_LOOP_INTERVAL_S"] == "2"
    assert OF_NEW_CLUSTER.keys() <= os.environ.keys()


def test_an_address_travels_as_a_name() -> None:
    notices: list[frozenset[str]] = []
    address = ReplicaAddress("two", notices.append)
    address.notify(frozenset({"two"}))
    arrived = pickle.loads(pickle.dumps(address))
    assert (type(arrived), arrived, notices) == (str, "two", [{"two"}])


NODES = {cpu: cpu // 4 for cpu in range(8)}


@pytest.mark.parametrize(
    ("num", "free", "chosen"),
    [
        (2, range(8), (0, 1)),
        (4, range(1, 8), (4, 5, 6, 7)),  # the node that has them all
        (2, [0, 4, 5, 6], (4, 5)),
        (1, [3, 4, 5], (3,)),  # the node where least is left over
        (6, range(8), (0, 1, 2, 3, 4, 5)),
        (3, [0, 1], ()),
        (1, [], ()),
    ],
)
def test_cpus_are_of_one_node_where_it_has_enough(num: int, free: list[int], chosen: tuple[int, ...]) -> None:
    assert choose_cpus(num, free, NODES) == chosen


def test_each_claim_has_its_own_cpus_until_it_is_released(tmp_path: Path) -> None:
    one, two, three = (CpuClaim(tmp_path) for _ in range(3))
    assert one.claim(3, range(8), NODES) == (0, 1, 2)
    assert two.claim(3, range(8), NODES) == (4, 5, 6)
    assert three.claim(3, range(8), NODES) == ()
    one.release()
    assert three.claim(3, range(8), NODES) == (0, 1, 2)


def test_the_nodes_of_the_machine_are_read(tmp_path: Path) -> None:
    for node, cpus in enumerate(["0-2,6\n", "3-5\n", "\n"]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus)
    assert numa_nodes(tmp_path) == {0: 0, 1: 0, 2: 0, 6: 0, 3: 1, 4: 1, 5: 1}
    assert numa_nodes(tmp_path / "absent") == {}
