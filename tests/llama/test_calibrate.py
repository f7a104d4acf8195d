"""The cost curve of the tiny model: measured through the backend as it serves, kept, and measured again."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, Kernels, KernelState
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.host import OtherProcesses
from openai_cpu_server.llama.measure.calibrate import Calibrator, CurveKey, cost_curve, is_sane
from openai_cpu_server.llama.measure.measurements import Measurements
from openai_cpu_server.llama.measure.probe import Disturbed, Probe
from openai_cpu_server.scheduler.cost_model import CostModel
from tests.llama.driver import generate
from tests.llama.odd_models import mamba

PROMPT = tuple(range(300, 340))


class Quiet(OtherProcesses):
    """A machine that is left to us."""

    def share(self) -> float:
        return 0.0


class Noisy(OtherProcesses):
    def share(self) -> float:
        return 0.5


@pytest.fixture(scope="module")
def options(tiny: Path) -> EngineOptions:
    return EngineOptions(model_path=str(tiny), kv_tokens=2048, max_seqs=8, prefill_tokens=128, threads=1)


@pytest.fixture(scope="module")
def fresh(options: EngineOptions) -> Iterator[LlamaBackend]:
    backend = LlamaBackend.load(options, lambda fraction: None)
    yield backend
    backend.close()


def measured(backend: LlamaBackend, options: EngineOptions, folder: Path) -> CostCurve:
    return cost_curve(backend, options, folder, neighbours=Quiet())


def test_a_curve_is_positive_and_finite_and_feeds_a_model(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path
) -> None:
    progress: list[float] = []
    curve = cost_curve(fresh, options, tmp_path, progress.append, Quiet())
    assert is_sane(curve)
    assert curve.step_ms[0][0] == 1
    assert {n for n, _ in curve.step_ms} <= {1, 2, 4, 8, 12, 15, 16, 17, 24, 32, 48, 64, 128}
    assert CostModel(curve).predict_ms(16, 16_000) > 0
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def test_measuring_leaves_no_trace(fresh: LlamaBackend, options: EngineOptions, tmp_path: Path) -> None:
    expected = generate(fresh, PROMPT, 8)
    measured(fresh, options, tmp_path)
    for slot in range(options.max_seqs):
        assert generate(fresh, PROMPT, 8, slot=slot) == expected


def test_a_curve_is_measured_once(fresh: LlamaBackend, options: EngineOptions, tmp_path: Path) -> None:
    first = measured(fresh, options, tmp_path)
    (path,) = tmp_path.iterdir()
    written = path.stat().st_mtime_ns
    assert measured(fresh, options, tmp_path) == first
    assert path.stat().st_mtime_ns == written


def test_it_is_disturbed_by_whoever_wants_something_and_goes_on_later(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path
) -> None:
    expected = generate(fresh, PROMPT, 8)
    calibrator = Calibrator(fresh, options, tmp_path, neighbours=Quiet())
    asked, attempts = itertools.count(1), 0
    curve = None
    while curve is None:
        # At the second step of all: a busy machine leaves time for a few more only.
        curve = calibrator.measure(lambda: next(asked) % 40 == 2)
        attempts += 1
        assert generate(fresh, PROMPT, 8) == expected
    assert attempts >= 2
    assert is_sane(curve)
    assert calibrator.known() == curve


@pytest.mark.parametrize("stall_s", [0.0, 0.6], ids=["smooth", "stalled"])
def test_the_longest_piece_becomes_shorter_until_there_is_time_enough_for_it(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path, stall_s: float
) -> None:
    """It takes 17 steps at first, and somebody comes after 12 each time.

    A stall leaves no time for sizes above one token, and a context of such steps takes hundreds of them.
    """
    calibrator = Calibrator(fresh, options, tmp_path, neighbours=Quiet())
    curve = None
    for attempt in range(20):
        steps = itertools.count(1)

        def somebody_comes(attempt: int = attempt, steps: Iterator[int] = steps) -> bool:
            step = next(steps)
            if (attempt, step) == (0, 1):
                time.sleep(stall_s)
            return step > 12

        curve = calibrator.measure(somebody_comes)
        if curve is not None:
            break
    assert curve is not None, "it never ends"
    assert is_sane(curve)
    assert curve.step_ms[-1][0] == 1 or not stall_s


def compute_for_ever(probe: Probe) -> None:
    while True:
        probe.compute({0: 100})
        probe.close()


def test_an_interrupted_step_is_not_counted(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path
) -> None:
    expected = generate(fresh, PROMPT, 8)
    probe = Probe(fresh)
    stop = threading.Event()

    def press() -> None:
        while not stop.is_set():
            fresh.interrupt()

    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(Disturbed), probe:
            compute_for_ever(probe)
    finally:
        stop.set()
        presser.join()
    assert generate(fresh, PROMPT, 8) == expected


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"key": 1, "value": 2}', b"[]", b"null"])
def test_a_damaged_file_is_measured_again(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path, content: bytes
) -> None:
    _path(fresh, options, tmp_path).write_bytes(content)
    again = measured(fresh, options, tmp_path)
    assert is_sane(again)
    assert measured(fresh, options, tmp_path) == again


def test_a_curve_that_cannot_be_is_measured_again(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path
) -> None:
    absurd = CostCurve(step_ms=((16, -1.0),), attended_ms=0.0)
    Measurements(tmp_path).put(CurveKey.of(fresh.info, options), absurd)
    assert is_sane(measured(fresh, options, tmp_path))


def test_what_was_measured_beside_busy_neighbours_is_used_but_not_kept(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert is_sane(cost_curve(fresh, options, tmp_path, neighbours=Noisy()))
    assert not list(tmp_path.iterdir())
    assert "other processes took 50 %" in caplog.text


def test_a_folder_that_cannot_be_written_costs_one_line(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert is_sane(measured(fresh, options, tmp_path / "file" / "cache"))
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"repack": True},
        {"threads_batch": 1},
        {"flash_attention": False},
    ],
)
def test_other_options_are_another_curve(
    fresh: LlamaBackend, options: EngineOptions, tmp_path: Path, changes: dict[str, object]
) -> None:
    assert _path(fresh, options, tmp_path) == _path(fresh, options, tmp_path)
    other = msgspec.structs.replace(options, **changes)
    assert _path(fresh, options, tmp_path) != _path(fresh, other, tmp_path)


def test_another_model_or_pool_is_another_curve(
    fresh: LlamaBackend, options: EngineOptions, tiny: Path, tmp_path: Path
) -> None:
    info, kept = fresh.info, Measurements(tmp_path)
    path = _path(fresh, options, tmp_path)
    for changes in ({"kv_tokens": 9000}, {"kv_type": "f32"}, {"threads": 77}, {"num_parameters": 5}):
        other = msgspec.structs.replace(info, **changes)
        assert kept.path(CurveKey.of(other, options)) != path
    with_kernels = msgspec.structs.replace(
        info, kernels=Kernels(attention=KernelState(instruction_set="new"))
    )
    assert kept.path(CurveKey.of(with_kernels, options)) != path
    slightly = msgspec.structs.replace(info, kv_tokens=info.kv_tokens + 256)
    assert kept.path(CurveKey.of(slightly, options)) == path
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny.read_bytes())
    os.utime(copy, ns=(1, 1))
    newer = msgspec.structs.replace(info, path=str(copy))
    assert kept.path(CurveKey.of(newer, options)) != path


def _path(backend: LlamaBackend, options: EngineOptions, folder: Path) -> Path:
    return Measurements(folder).path(CurveKey.of(backend.info, options))


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_tokens": 256, "prefill_tokens": 32, "max_seqs": 1},
        {"kv_tokens": 1024, "max_seqs": 2, "kv_type": "q8_0"},
        {"flash_attention": False, "threads": 1, "threads_batch": 2},
    ],
)
def test_small_pools_and_other_options(
    options: EngineOptions, tmp_path: Path, changes: dict[str, object]
) -> None:
    chosen = msgspec.structs.replace(options, **changes)
    backend = LlamaBackend.load(chosen, lambda fraction: None)
    try:
        curve = measured(backend, chosen, tmp_path)
    finally:
        backend.close()
    assert is_sane(curve)
    assert curve.step_ms[-1][0] <= backend.info.max_step_tokens


def test_a_model_without_cells(tiny: Path, tmp_path: Path) -> None:
    path = mamba(tiny, tmp_path / "mamba.gguf")
    chosen = EngineOptions(model_path=str(path), kv_tokens=512, max_seqs=4, prefill_tokens=64)
    backend = LlamaBackend.load(chosen, lambda fraction: None)
    try:
        assert is_sane(measured(backend, chosen, tmp_path / "cache"))
    finally:
        backend.close()


@pytest.mark.parametrize(
    "curve",
    [
        CostCurve(step_ms=(), attended_ms=0.0),
        CostCurve(step_ms=((0, 1.0),), attended_ms=0.0),
        CostCurve(step_ms=((2, 1.0), (1, 1.0)), attended_ms=0.0),
        CostCurve(step_ms=((1, 1.0), (1, 1.0)), attended_ms=0.0),
        CostCurve(step_ms=((1, 0.0),), attended_ms=0.0),
        CostCurve(step_ms=((1, math.inf),), attended_ms=0.0),
        CostCurve(step_ms=((1, 1.0),), attended_ms=-1.0),
        CostCurve(step_ms=((1, 1.0),), attended_ms=math.nan),
    ],
)
def test_what_no_curve_can_be(curve: CostCurve) -> None:
    assert not is_sane(curve)
