"""What Ray is told through its environment."""

from __future__ import annotations

import os

import pytest

from openai_cpu_server.config.folders import tell_others
from openai_cpu_server.replicas.ray.surroundings import OF_NEW_CLUSTER, of_replicas


@pytest.fixture(autouse=True)
def nobody_has_set_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OF_NEW_CLUSTER, *of_replicas()):
        monkeypatch.setenv(name, "")  # so that it is taken back at the end
        monkeypatch.delenv(name)


def test_engines_are_not_last_in_line() -> None:
    assert of_replicas()["RAY_worker_niceness"] == "0"


def test_who_sets_one_has_his_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "5")
    monkeypatch.setenv("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "2")
    tell_others(OF_NEW_CLUSTER)
    assert of_replicas()["RAY_worker_niceness"] == "5"
    assert os.environ["RAY_SERVE_CONTROL_LOOP_INTERVAL_S"] == "2"
    assert OF_NEW_CLUSTER.keys() <= os.environ.keys()
