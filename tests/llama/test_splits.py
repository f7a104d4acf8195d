"""Which split is the fastest is measured once, by whatever is told to measure one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.offload import Device, Offload
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.measure.splits import SplitKey, SplitRace
from openai_cpu_server.llama.model.kv_size import Elsewhere
from openai_cpu_server.llama.offload.split import DeviceBytes, Split, SplitKind
from tests.tiny_model import tiny_model_path

GPU = Device(
    name="GPU0", backend="Some", description="a device", kind="gpu", free_bytes=2**30, total_bytes=2**30
)


def some_split(layers: int, *, experts: int = 0, kv_on_gpu: bool = True) -> Split:
    return Split(
        offload=Offload(gpu_layers=layers, cpu_moe=experts, kv_on_gpu=kv_on_gpu),
        num_layers=33,
        experts_on_cpu=experts,
        taken=DeviceBytes(layers, 0, 0, 0),
        cells=256,
        elsewhere=Elsewhere(),
    )


CANDIDATES = {
    SplitKind.FULL: some_split(33, experts=20),
    SplitKind.DENSE: some_split(33, experts=32),
    SplitKind.CPU: some_split(0),
}


@pytest.fixture
def key() -> SplitKey:
    options = EngineOptions(model_path=str(tiny_model_path()), offload=Offload(gpu_layers="auto"))
    return SplitKey.of(options, GPU)


def race(key: SplitKey, folder: Path, candidates: dict[SplitKind, Split] = CANDIDATES) -> SplitRace:
    return SplitRace(candidates, key, folder)


def costing(**ms: float) -> tuple[Callable[[Split], float], list[str]]:
    """Says what a split costs by its name, which it writes down."""
    asked: list[str] = []

    def cost(split: Split) -> float:
        name = "cpu" if split.is_cpu_alone else {20: "full", 32: "dense"}[split.experts_on_cpu]
        asked.append(name)
        if name not in ms:
            raise StartupError("no memory")
        return ms[name]

    return cost, asked


def test_unmeasured_the_first_choice_is_taken(tmp_path: Path, key: SplitKey) -> None:
    assert race(key, tmp_path).best() is CANDIDATES[SplitKind.FULL]


def test_the_fastest_is_measured_once(tmp_path: Path, key: SplitKey) -> None:
    cost, asked = costing(full=100, dense=80, cpu=300)
    race(key, tmp_path).run(cost)
    again = race(key, tmp_path)
    assert again.is_run
    assert again.best() is CANDIDATES[SplitKind.DENSE]
    again.run(cost)
    assert asked == ["full", "dense", "cpu"]


def test_a_little_faster_is_noise(tmp_path: Path, key: SplitKey) -> None:
    one = race(key, tmp_path)
    one.run(costing(full=100, dense=98, cpu=300)[0])
    assert one.best() is CANDIDATES[SplitKind.FULL]


def test_what_does_not_load_is_passed_over(tmp_path: Path, key: SplitKey) -> None:
    one = race(key, tmp_path)
    one.run(costing(dense=80, cpu=70)[0])
    assert one.is_run
    assert one.best() is CANDIDATES[SplitKind.CPU]


class Died(BaseException):
    """As if the process had ended."""


def test_what_ends_the_process_twice_is_passed_over(tmp_path: Path, key: SplitKey) -> None:
    def dies(split: Split) -> float:
        raise Died

    for _ in range(2):
        assert not race(key, tmp_path).is_run
        with pytest.raises(Died):
            race(key, tmp_path).run(dies)
    cost, asked = costing(full=1, dense=80, cpu=300)
    third = race(key, tmp_path)
    third.run(cost)
    assert asked == ["dense", "cpu"]
    assert third.best() is CANDIDATES[SplitKind.DENSE]


def test_where_nothing_can_be_kept_nothing_is_measured(tmp_path: Path, key: SplitKey) -> None:
    """The engine that replaces this one would find something else."""
    (tmp_path / "file").write_text("")
    cost, asked = costing(full=100, dense=80, cpu=300)
    one = race(key, tmp_path / "file")
    one.run(cost)
    assert asked == []
    assert one.best() is CANDIDATES[SplitKind.FULL]


def test_far_fewer_layers_than_were_measured_are_another_split(tmp_path: Path, key: SplitKey) -> None:
    race(key, tmp_path).run(costing(full=100, dense=80, cpu=300)[0])
    fewer = CANDIDATES | {SplitKind.FULL: some_split(12, experts=20)}
    assert race(key, tmp_path, fewer).times.keys() == {SplitKind.DENSE, SplitKind.CPU}


def test_another_device_or_wish_has_times_of_its_own(tmp_path: Path, key: SplitKey) -> None:
    race(key, tmp_path).run(costing(full=100, dense=80, cpu=300)[0])
    for change in ({"device": "another"}, {"driver": "newer"}, {"asked": Offload(gpu_layers="all")}):
        assert race(msgspec.structs.replace(key, **change), tmp_path).times == {}
