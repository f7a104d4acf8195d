"""Measurements that are stored: the cost curve of steps, and the layout of weights in memory."""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, Kernels, KernelState, WeightLayout
from openai_cpu_server.contract.offload import ON_CPU, Device, DevicePlacement, Offload
from openai_cpu_server.kernels.library import Kernel, KernelLibrary, library_path, obstacle
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.host import OtherProcesses
from openai_cpu_server.llama.loading import switch_kernels
from openai_cpu_server.llama.measure.calibrate import Calibrator, CurveKey, cost_curve, curves, is_sane
from openai_cpu_server.llama.measure.layout import (
    STEPS,
    TILE_ROWS,
    LayoutKey,
    ProductTimes,
    chosen_layout,
    faster_layout,
    stored_layout,
    timed_products,
)
from openai_cpu_server.llama.measure.measurements import Measured
from openai_cpu_server.llama.measure.probe import Disturbed, Probe
from openai_cpu_server.scheduler.cost_model import CostModel
from tests.llama.driver import generate, loaded, repeated_interrupts, small_options
from tests.tiny_model import tiny_model_path

PROMPT = tuple(range(300, 340))
SIZES = {"kv_tokens": 2048, "max_seqs": 8, "prefill_tokens": 128, "threads": 1}


class Neighbours(OtherProcesses):
    def __init__(self, share: float = 0.0) -> None:
        self.share = lambda: share


@pytest.fixture(scope="module")
def fresh(tiny: Path) -> Iterator[LlamaBackend]:
    with loaded(tiny, **SIZES) as backend:
        yield backend


@dataclass(frozen=True)
class Bench:
    backend: LlamaBackend
    options: EngineOptions
    folder: Path

    def measure(self, neighbours: OtherProcesses | None = None) -> CostCurve:
        return cost_curve(self.backend, self.options, self.folder, neighbours=neighbours or Neighbours())

    def path(self, **changes: object) -> Path:
        changed = msgspec.structs.replace(self.options, **changes)
        return curves(self.folder).path(CurveKey.of(self.backend.info, changed))

    def calibrator(self, clock: Callable[[], float] = time.monotonic) -> Calibrator:
        return Calibrator(self.backend, self.options, self.folder, neighbours=Neighbours(), clock=clock)

    def answer(self, slot: int = 0) -> list[int]:
        return generate(self.backend, PROMPT, 8, slot=slot)


@pytest.fixture
def bench(fresh: LlamaBackend, tiny: Path, tmp_path: Path) -> Bench:
    return Bench(fresh, small_options(tiny, **SIZES), tmp_path)


def test_a_curve_is_measured_once_and_leaves_no_trace(bench: Bench) -> None:
    expected, progress = bench.answer(), list[float]()
    curve = cost_curve(bench.backend, bench.options, bench.folder, progress.append, Neighbours())
    assert is_sane(curve)
    assert curve.step_ms[0][0] == 1
    assert {n for n, _ in curve.step_ms} <= {1, 2, 4, 8, 12, 15, 16, 17, 24, 32, 48, 64, 128}
    assert CostModel(curve).predict_ms(16, 16_000) > 0
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    (path,) = bench.folder.iterdir()
    written = path.stat().st_mtime_ns
    assert bench.measure() == curve
    assert path.stat().st_mtime_ns == written
    for slot in range(bench.options.max_seqs):
        assert bench.answer(slot) == expected


def test_a_disturbed_calibration_continues_later(bench: Bench) -> None:
    expected = bench.answer()
    calibrator = bench.calibrator()
    checks, attempts = itertools.count(1), 0
    curve = None
    while curve is None:
        # Disturb the second step: a busy machine leaves time for only a few more.
        curve = calibrator.measure(lambda: next(checks) % 40 == 2)
        attempts += 1
        assert bench.answer() == expected
    assert attempts >= 2
    assert is_sane(curve)
    assert calibrator.stored_curve() == curve


@pytest.mark.parametrize("stall_s", [0.0, 0.6], ids=["smooth", "stalled"])
def test_the_longest_piece_becomes_shorter_until_there_is_time(bench: Bench, stall_s: float) -> None:
    """A piece takes 17 steps at first, and is disturbed after 12. A stall leaves time for one token only."""
    now_s = 0.0
    calibrator = bench.calibrator(lambda: now_s)
    curve = None
    for _ in range(20):
        steps = itertools.count(1)

        def is_disturbed(steps: Iterator[int] = steps) -> bool:
            nonlocal now_s
            now_s = stall_s
            return next(steps) > 12

        curve = calibrator.measure(is_disturbed)
        if curve is not None:
            break
    assert is_sane(curve)
    assert (curve.step_ms[-1][0] == 1) == (stall_s > 0)


def test_an_interrupted_step_is_not_counted(bench: Bench) -> None:
    expected = bench.answer()
    with (
        repeated_interrupts(bench.backend.interrupt, bench.backend._loaded.context),
        pytest.raises(Disturbed),
        Probe(bench.backend) as probe,
    ):
        probe.compute({0: 100})
    assert bench.answer() == expected


def test_a_damaged_file_or_an_impossible_curve_is_measured_again(bench: Bench) -> None:
    store, key = curves(bench.folder), CurveKey.of(bench.backend.info, bench.options)
    for content in (b"", b"{", b"\xff\xfe", b'{"key": 1, "value": 2}', b"[]", b"null"):
        bench.path().write_bytes(content)
        assert store.get(key) is None
    again = bench.measure()
    assert is_sane(again)
    assert bench.measure() == again
    store.put(key, CostCurve(step_ms=((16, -1.0),), attended_ms=0.0))
    assert is_sane(bench.measure())


def test_a_curve_beside_busy_neighbours_is_not_stored(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert is_sane(bench.measure(Neighbours(0.5)))
    assert not list(bench.folder.iterdir())
    assert "other processes took 50 %" in caplog.text
    caplog.clear()
    (bench.folder / "file").write_text("in the way")
    assert is_sane(replace(bench, folder=bench.folder / "file" / "cache").measure())
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_another_model_pool_or_option_is_another_curve(bench: Bench, tiny: Path, tmp_path: Path) -> None:
    info, store = bench.backend.info, curves(tmp_path)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny.read_bytes())
    os.utime(copy, ns=(1, 1))

    def path(**changes: object) -> Path:
        return store.path(CurveKey.of(msgspec.structs.replace(info, **changes), bench.options))

    kernels = Kernels(attention=KernelState(instruction_set="new"))
    others = ({"kv_tokens": 9000}, {"kv_type": "f32"}, {"threads": 77}, {"num_parameters": 5})
    weights = WeightLayout(repacked=True)
    for changes in (*others, {"kernels": kernels}, {"weights": weights}, {"path": str(copy)}):
        assert path(**changes) != bench.path()
    for changes in ({"threads_batch": 1}, {"flash_attention": False}):
        assert bench.path(**changes) != bench.path()
    assert path(kv_tokens=info.kv_tokens + 256) == bench.path()


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_tokens": 256, "prefill_tokens": 32, "max_seqs": 1},
        {"kv_tokens": 1024, "max_seqs": 2, "kv_type": "q8_0"},
        {"flash_attention": False, "threads": 1, "threads_batch": 2},
        {"model": "mamba", "kv_tokens": 512, "max_seqs": 4, "prefill_tokens": 64},
    ],
    ids=str,
)
def test_curves_of_other_options_and_models(tiny: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    changed = {**SIZES, **changes}
    model = tiny_model_path(shape="tiny-mamba") if changed.pop("model", None) else tiny
    with loaded(model, **changed) as backend:
        curve = Bench(backend, small_options(model, **changed), tmp_path / "cache").measure()
    assert is_sane(curve)
    assert curve.step_ms[-1][0] <= backend.info.max_step_tokens


@pytest.mark.parametrize(
    ("step_ms", "attended_ms"),
    [
        ((), 0.0),
        (((0, 1.0),), 0.0),
        (((2, 1.0), (1, 1.0)), 0.0),
        (((1, 1.0), (1, 1.0)), 0.0),
        (((1, 0.0),), 0.0),
        (((1, math.inf),), 0.0),
        (((1, 1.0),), -1.0),
        (((1, 1.0),), math.nan),
    ],
)
def test_impossible_curves_are_not_sane(step_ms: tuple[tuple[int, float], ...], attended_ms: float) -> None:
    assert not is_sane(CostCurve(step_ms=step_ms, attended_ms=attended_ms))


def test_a_curve_belongs_to_its_split(tiny: Path, fresh: LlamaBackend) -> None:
    gpu = Device(name="GPU0", backend="Some", description="one", kind="gpu", free_bytes=9, total_bytes=9)
    layers = {"num_layers": 3, "weights_bytes": 1, "cells_bytes": 1}
    three, two = (
        msgspec.structs.replace(DevicePlacement.nowhere("", gpu), layers=n, **layers) for n in (3, 2)
    )
    patterns, keys = Offload(gpu_layers=3, tensor_place=(("ffn", "CPU"),)), []
    for placement, offload in ((None, ON_CPU), (three, ON_CPU), (two, ON_CPU), (three, patterns)):
        info = msgspec.structs.replace(fresh.info, placement=placement)
        keys.append(CurveKey.of(info, msgspec.structs.replace(small_options(tiny), offload=offload)))
    assert len({key.split for key in keys}) == 4
    assert keys[0].split is None
    assert b"split" not in msgspec.json.encode(keys[0]), (
        "curves that were measured without a device keep their keys"
    )


@pytest.fixture(scope="module")
def model() -> Path:
    """ggml repacks Q4_0 on every CPU."""
    return tiny_model_path("q4_0")


def options(model: Path, folder: Path | None, **more: object) -> EngineOptions:
    cost_dir = None if folder is None else str(folder)
    return EngineOptions(**{"model_path": str(model), "cost_dir": cost_dir, **more})


def layout_for(model: Path, folder: Path | None, **more: object) -> WeightLayout:
    return chosen_layout(options(model, folder, **more), GgufHeader(model), Kernels())


def store_layout(model: Path, folder: Path, layout: WeightLayout, kernels: Kernels) -> None:
    sets = kernels.instruction_sets
    key = LayoutKey.here(model, products=sets["products"], tiles=sets["tiles"])
    Measured(folder, LayoutKey, WeightLayout).put(key, layout)


def test_a_layout_is_measured_once(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pauses: list[None] = []
    chosen_options = options(model, tmp_path)
    first = chosen_layout(chosen_options, GgufHeader(model), Kernels(), pause=lambda: pauses.append(None))
    assert first.repacked_cost > 0
    assert pauses
    assert f"weights: {first} (measured once" in caplog.text
    assert len(list(tmp_path.iterdir())) == 1
    again: list[None] = []
    second = chosen_layout(chosen_options, GgufHeader(model), Kernels(), pause=lambda: again.append(None))
    assert (second, again) == (first, [])
    assert stored_layout(chosen_options, GgufHeader(model)) == first


@pytest.mark.parametrize("repacked", [True, False])
def test_an_engine_uses_the_stored_layout(model: Path, tmp_path: Path, repacked: bool) -> None:
    kernels = switch_kernels("off")
    store_layout(model, tmp_path, WeightLayout(repacked=repacked, repacked_cost=0.5), kernels)
    with loaded(model, kernels="off", cost_dir=str(tmp_path)) as backend:
        assert backend.info.weights.repacked == repacked
        assert ("repacked; " in backend.info.computed_by["weights"]) == repacked
        assert len(generate(backend, PROMPT, 4)) == 4


def test_options_override_the_stored_layout_and_kernels_have_their_own(model: Path, tmp_path: Path) -> None:
    store_layout(
        model, tmp_path, WeightLayout(repacked=True), Kernels(products=KernelState(instruction_set="avx2"))
    )
    store_layout(model, tmp_path, WeightLayout(left_to_ggml=("q4_0",)), Kernels())
    assert not layout_for(model, tmp_path).repacked
    for repack in (True, False):
        layout = layout_for(model, tmp_path, repack=repack)
        assert (layout.repacked, layout.left_to_ggml) == (repack, ("q4_0",))
        assert stored_layout(options(model, tmp_path, repack=repack), GgufHeader(model)) == layout


def test_layouts_that_cannot_be_stored(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert layout_for(model, None) == stored_layout(options(model, None), GgufHeader(model)) == WeightLayout()
    (tmp_path / "file").write_text("in the way")
    assert layout_for(model, tmp_path / "file" / "folder") == WeightLayout()
    assert "cannot store measurements" in caplog.text


def test_layouts_of_f32_weights_are_not_measured(tmp_path: Path) -> None:
    assert layout_for(tiny_model_path("f32"), tmp_path) == WeightLayout()
    assert len(list(tmp_path.iterdir())) == 1, "the result is stored, so that it is not measured again"


def test_experts_are_timed_separately(tmp_path: Path) -> None:
    path = tmp_path / "mixture.gguf"
    source, shape = tiny_model_path(shape="tiny-qwen3moe"), ("--type", "q8_0")
    command = [sys.executable, "-m", "openai_cpu_server", "quantize", str(source), str(path), *shape]
    subprocess.run(command, check=True, capture_output=True)
    groups = list(timed_products(GgufHeader(path), Kernels()))
    assert {(group.type, group.are_experts) for group in groups} == {("q8_0", False), ("q8_0", True)}
    assert all(group.ours is None and min(group.ggml.values()) > 0 for group in groups)


def times(
    kind: str, ggml: float, *, ours: float | None = None, repacked: float | None = None, large: float = 1.0
) -> ProductTimes:
    """Return equal times for all step sizes; repacked steps of several tokens take `large` times as long."""

    def steps(one: float | None, factor: float = 1.0) -> dict[int, float] | None:
        return None if one is None else {n: one * (factor if n > 1 else 1) for n in STEPS}

    return ProductTimes(kind, steps(ours), steps(ggml), steps(repacked, large))


@pytest.mark.parametrize(
    ("groups", "repacked", "left_to_ggml"),
    [
        ([], False, ()),
        ([times("q6_K", 1.0)], False, ()),
        ([times("q4_0", 1.0, repacked=0.5)], True, ()),
        ([times("q4_0", 1.0, repacked=0.97)], False, ()),
        ([times("q4_0", 1.0, ours=0.4, repacked=0.5)], False, ()),
        ([times("q4_0", 1.0, ours=2.0, repacked=1.5)], False, ("q4_0",)),
        ([times("q4_0", 1.0, ours=2.0, repacked=0.5)], True, ("q4_0",)),
        ([times("q4_K", 1.0, repacked=0.8, large=1.5)], False, ()),
        ([times("q4_K", 1.0, repacked=0.8), times("q4_K", 10.0, repacked=12.0)], False, ()),
        ([times("mxfp4", 10.0, repacked=5.0), times("q8_0", 1.0, ours=0.5)], True, ()),
        ([times("mxfp4", 10.0, ours=1.0, repacked=5.0), times("q8_0", 1.0, ours=2.0)], False, ("q8_0",)),
    ],
)
def test_the_faster_layout(groups: list[ProductTimes], repacked: bool, left_to_ggml: tuple[str, ...]) -> None:
    layout = faster_layout(groups)
    assert (layout.repacked, layout.left_to_ggml) == (repacked, left_to_ggml)


@pytest.mark.parametrize(
    ("speeds", "least"),
    [
        ({}, None),
        ({8: 0.5, 16: 1.2, 32: 2.0}, 16),
        ({8: 1.1, 16: 0.9, 32: 2.0}, 32),
        ({8: 1.1, 16: 1.2, 32: 2.0}, 8),
        ({8: 2.0, 16: 1.2, 32: 1.0}, None),
    ],
)
def test_tiles_are_used_from_the_number_of_rows_where_they_are_always_faster(
    speeds: dict[int, float], least: int | None
) -> None:
    group = times("q4_K", 1.0)._replace(tile_speeds=speeds)
    slower = group._replace(tile_speeds={64: 2.0})
    assert faster_layout([group]).tile_rows == (("q4_K", least),)
    expected = None if least is None else 64
    assert faster_layout([times("f16", 1.0), group, slower]).tile_rows == (("q4_K", expected),)


def test_tiles_are_timed_at_each_number_of_rows(model: Path) -> None:
    if why_not := obstacle():
        pytest.skip(why_not)
    library = KernelLibrary(ctypes.CDLL(str(library_path())))
    library.reset()
    library.switch_on(Kernel.TILES)
    before = library.num_done(Kernel.TILES)
    groups = list(timed_products(GgufHeader(model), Kernels(tiles=KernelState(instruction_set="amx"))))
    library.reset()
    assert library.num_done(Kernel.TILES) > before
    assert all((*(group.tile_speeds or ()),) == TILE_ROWS for group in groups)
    assert "tiles from so many rows on: q4_0 " in str(faster_layout(groups))
