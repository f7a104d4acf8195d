"""Which split is the fastest is measured once, by whatever is told to measure one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.offload import Device, Offload
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.measure.measurements import Profile
from openai_cpu_server.llama.measure.splits import SplitKey, SplitRace, fastest
from openai_cpu_server.llama.model.kv_size import Elsewhere, KVType
from openai_cpu_server.llama.offload.split import (
    DeviceBytes,
    Fitting,
    ModelSizes,
    Split,
    SplitKind,
    StepSizes,
)
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


def test_the_fastest_is_measured_once(tmp_path: Path, key: SplitKey) -> None:
    cost, asked = costing(full=100, dense=80, cpu=300)
    assert race(key, tmp_path).best() is CANDIDATES[SplitKind.FULL]
    race(key, tmp_path).run(cost)
    again = race(key, tmp_path)
    assert again.is_run
    assert again.best() is CANDIDATES[SplitKind.DENSE]
    again.run(cost)
    assert asked == ["full", "dense", "cpu"]


@pytest.mark.parametrize(
    ("ms", "kind", "why_cpu"),
    [
        ({"full": 100, "dense": 98, "cpu": 300}, SplitKind.FULL, None),  # a little faster is noise
        (
            {"full": 100, "dense": 80, "cpu": 70},
            SplitKind.CPU,
            "it is faster than with Some GPU0 a device, as measured",
        ),
        ({"cpu": 70}, SplitKind.CPU, "no split with Some GPU0 a device could be used when that was tried"),
    ],
)
def test_which_is_best_and_why_the_cpu_serves_alone(
    tmp_path: Path, key: SplitKey, ms: dict[str, float], kind: SplitKind, why_cpu: str | None
) -> None:
    one = race(key, tmp_path)
    one.run(costing(**ms)[0])
    assert one.best() is CANDIDATES[kind]
    assert why_cpu is None or one.why_cpu_alone() == why_cpu


def test_what_does_not_load_gets_a_second_chance_at_the_next_start(tmp_path: Path, key: SplitKey) -> None:
    """Somebody else may have filled the device."""
    one = race(key, tmp_path)
    one.run(costing(dense=80, cpu=70)[0])
    assert one.is_run
    assert one.best() is CANDIDATES[SplitKind.CPU]
    second, (cost, asked) = race(key, tmp_path), costing(dense=80, cpu=70)
    assert not second.is_run
    second.run(cost)
    assert asked == ["full"]
    assert race(key, tmp_path).is_run


def test_where_nothing_fits_it_is_told_though_nothing_was_measured(tmp_path: Path, key: SplitKey) -> None:
    asked, full = Offload(gpu_layers="auto"), msgspec.structs.replace(GPU, free_bytes=0)
    header, options = GgufHeader(tiny_model_path()), EngineOptions(model_path="")
    sizes = ModelSizes.of(header, KVType.F16, asked, GPU.name)
    fitting = Fitting(sizes, StepSizes.of(sizes, options, 256, 2**30), asked, full)
    found = fastest(race(key, tmp_path, fitting.candidates()), fitting)
    assert found == Offload(given_up="nothing of it fits on GPU0")


def test_whoever_has_time_measures_all(tmp_path: Path, key: SplitKey) -> None:
    hasty, patient = race(key, tmp_path / "hasty"), race(key, tmp_path / "patient")
    cost, asked = costing(full=100, dense=80, cpu=70)
    hasty.run(cost, budget_s=0)
    assert asked == ["full", "cpu"]
    patient.run(cost, budget_s=math.inf)
    assert asked[2:] == ["full", "dense", "cpu"]


def test_what_was_measured_goes_with_the_settings_that_were_found(tmp_path: Path, key: SplitKey) -> None:
    tuned = Profile(
        threads=3, threads_batch=4, repack=True, prefill_tokens=64, kv_type="q8_0", flash_attention=True
    )
    one = race(key, tmp_path)
    one.run(costing(full=100, dense=80, cpu=300)[0])
    asked = EngineOptions(model_path=str(tiny_model_path()), offload=Offload(gpu_layers="auto"))
    served = SplitKey.of(tuned.applied(asked), GPU)
    assert race(served, tmp_path).times == {}
    one.keep_for(tuned)
    assert race(served, tmp_path).best() is CANDIDATES[SplitKind.DENSE]
    pictures = msgspec.structs.replace(asked, projector_path="a", draft_model_path="b")
    assert SplitKey.of(pictures, GPU) == key, "what fits beside them is reckoned at each start"


def test_what_ends_the_process_twice_is_passed_over(tmp_path: Path, key: SplitKey) -> None:
    def dies(split: Split) -> float:
        raise SystemExit

    for _ in range(2):
        assert not race(key, tmp_path).is_run
        with pytest.raises(SystemExit):
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


def test_another_split_device_or_wish_has_times_of_its_own(tmp_path: Path, key: SplitKey) -> None:
    race(key, tmp_path).run(costing(full=100, dense=80, cpu=300)[0])
    for full in (some_split(12, experts=20), some_split(33, experts=31)):  # far fewer layers, or experts
        times = race(key, tmp_path, CANDIDATES | {SplitKind.FULL: full}).times
        assert times.keys() == {SplitKind.DENSE, SplitKind.CPU}
    for change in ({"device": "other"}, {"driver": "new"}, {"asked": Offload(gpu_layers=1)}, {"threads": 99}):
        assert race(msgspec.structs.replace(key, **change), tmp_path).times == {}
