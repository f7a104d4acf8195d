"""The cost curve of the tiny model: measured through the backend as it serves, kept, and measured again."""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, Kernels, KernelState, WeightLayout
from openai_cpu_server.contract.offload import ON_CPU, Device, Offload, Placement
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.host import OtherProcesses
from openai_cpu_server.llama.measure.calibrate import Calibrator, CurveKey, cost_curve, is_sane
from openai_cpu_server.llama.measure.measurements import Measurements
from openai_cpu_server.llama.measure.probe import Disturbed, Probe
from openai_cpu_server.scheduler.cost_model import CostModel
from tests.llama.driver import generate, loaded, pressing, small
from tests.tiny_model import tiny_model_path

PROMPT = tuple(range(300, 340))
SIZES = {"kv_tokens": 2048, "max_seqs": 8, "prefill_tokens": 128, "threads": 1}


class Neighbours(OtherProcesses):
    """Others who take this share of the machine."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = lambda: share


@pytest.fixture(scope="module")
def fresh(tiny: Path) -> Iterator[LlamaBackend]:
    with loaded(tiny, **SIZES) as backend:
        yield backend


@dataclass(frozen=True)
class Bench:
    """A backend that is measured, and where its curves are kept."""

    backend: LlamaBackend
    options: EngineOptions
    folder: Path

    def measured(self, neighbours: OtherProcesses | None = None) -> CostCurve:
        return cost_curve(self.backend, self.options, self.folder, neighbours=neighbours or Neighbours())

    def path(self, **changes: object) -> Path:
        """Of the curve with these options."""
        changed = msgspec.structs.replace(self.options, **changes)
        return Measurements(self.folder).path(CurveKey.of(self.backend.info, changed))

    def calibrator(self, clock: Callable[[], float] = time.monotonic) -> Calibrator:
        return Calibrator(self.backend, self.options, self.folder, neighbours=Neighbours(), clock=clock)

    def answer(self, slot: int = 0) -> list[int]:
        return generate(self.backend, PROMPT, 8, slot=slot)


@pytest.fixture
def bench(fresh: LlamaBackend, tiny: Path, tmp_path: Path) -> Bench:
    return Bench(fresh, small(tiny, **SIZES), tmp_path)


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
    assert bench.measured() == curve
    assert path.stat().st_mtime_ns == written
    for slot in range(bench.options.max_seqs):
        assert bench.answer(slot) == expected


def test_it_is_disturbed_by_whoever_wants_something_and_goes_on_later(bench: Bench) -> None:
    expected = bench.answer()
    calibrator = bench.calibrator()
    asked, attempts = itertools.count(1), 0
    curve = None
    while curve is None:
        # At the second step of all: a busy machine leaves time for a few more only.
        curve = calibrator.measure(lambda: next(asked) % 40 == 2)
        attempts += 1
        assert bench.answer() == expected
    assert attempts >= 2
    assert is_sane(curve)
    assert calibrator.known() == curve


@pytest.mark.parametrize("stall_s", [0.0, 0.6], ids=["smooth", "stalled"])
def test_the_longest_piece_becomes_shorter_until_there_is_time(bench: Bench, stall_s: float) -> None:
    """It takes 17 steps at first, and somebody comes after 12 each time.

    A stall leaves no time for sizes above one token, and a context of such steps takes hundreds of them.
    """
    now_s = 0.0
    calibrator = bench.calibrator(lambda: now_s)
    curve = None
    for _ in range(20):
        steps = itertools.count(1)

        def somebody_comes(steps: Iterator[int] = steps) -> bool:
            nonlocal now_s
            now_s = stall_s
            return next(steps) > 12

        curve = calibrator.measure(somebody_comes)
        if curve is not None:
            break
    assert curve is not None, "it never ends"
    assert is_sane(curve)
    assert (curve.step_ms[-1][0] == 1) == (stall_s > 0)


def test_an_interrupted_step_is_not_counted(bench: Bench) -> None:
    expected = bench.answer()
    with (
        pressing(bench.backend.interrupt, bench.backend._loaded.context),
        pytest.raises(Disturbed),
        Probe(bench.backend) as probe,
    ):
        probe.compute({0: 100})
    assert bench.answer() == expected


def test_a_damaged_file_or_a_curve_that_cannot_be_is_measured_again(bench: Bench) -> None:
    kept, key = Measurements(bench.folder), CurveKey.of(bench.backend.info, bench.options)
    for content in (b"", b"{", b"\xff\xfe", b'{"key": 1, "value": 2}', b"[]", b"null"):
        bench.path().write_bytes(content)
        assert kept.get(key, CostCurve) is None
    again = bench.measured()
    assert is_sane(again)
    assert bench.measured() == again
    kept.put(key, CostCurve(step_ms=((16, -1.0),), attended_ms=0.0))
    assert is_sane(bench.measured())


def test_beside_busy_neighbours_it_is_not_kept(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert is_sane(bench.measured(Neighbours(0.5)))
    assert not list(bench.folder.iterdir())
    assert "other processes took 50 %" in caplog.text
    caplog.clear()
    (bench.folder / "file").write_text("in the way")
    assert is_sane(replace(bench, folder=bench.folder / "file" / "cache").measured())
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_another_model_pool_or_option_is_another_curve(bench: Bench, tiny: Path, tmp_path: Path) -> None:
    info, kept = bench.backend.info, Measurements(tmp_path)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny.read_bytes())
    os.utime(copy, ns=(1, 1))

    def path(**changes: object) -> Path:
        return kept.path(CurveKey.of(msgspec.structs.replace(info, **changes), bench.options))

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
def test_other_options_and_no_cells(tiny: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    chosen = {**SIZES, **changes}
    model = tiny_model_path(shape="tiny-mamba") if chosen.pop("model", None) else tiny
    with loaded(model, **chosen) as backend:
        curve = Bench(backend, small(model, **chosen), tmp_path / "cache").measured()
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
def test_what_no_curve_can_be(step_ms: tuple[tuple[int, float], ...], attended_ms: float) -> None:
    assert not is_sane(CostCurve(step_ms=step_ms, attended_ms=attended_ms))


def test_a_curve_belongs_to_its_split(tiny: Path, fresh: LlamaBackend) -> None:
    options, info = small(tiny), fresh.info
    gpu = Device(name="GPU0", backend="Some", description="one", kind="gpu", free_bytes=9, total_bytes=9)
    placed = msgspec.structs.replace(
        Placement.nowhere("", gpu), layers=3, num_layers=3, weights_bytes=1, cells_bytes=1
    )
    fewer = msgspec.structs.replace(placed, layers=2)
    patterns = Offload(gpu_layers=3, tensor_place=(("ffn", "CPU"),))
    keys = []
    for at, asked in ((None, ON_CPU), (placed, ON_CPU), (fewer, ON_CPU), (placed, patterns)):
        offloading = msgspec.structs.replace(options, offload=asked)
        keys.append(CurveKey.of(msgspec.structs.replace(info, placement=at), offloading))
    assert len({key.split for key in keys}) == 4
    assert keys[0].split is None
    assert b"split" not in msgspec.json.encode(keys[0]), "what was measured without a device stays known"
