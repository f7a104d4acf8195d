"""How a model's weights lie in memory: measured once, kept, and what options name goes before."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Kernels, KernelState, WeightLayout
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.loading import switch_kernels
from openai_cpu_server.llama.measure.layout import (
    STEPS,
    LayoutKey,
    ProductTimes,
    chosen_layout,
    faster_layout,
    known_layout,
    timed_products,
)
from openai_cpu_server.llama.measure.measurements import Measurements
from tests.llama.driver import generate, loaded
from tests.tiny_model import tiny_model_path

PROMPT = tuple(range(300, 340))


@pytest.fixture(scope="module")
def model() -> Path:
    """ggml has another layout for its Q4_0 on every CPU."""
    return tiny_model_path("q4_0")


def options(model: Path, folder: Path | None, **more: object) -> EngineOptions:
    cost_dir = None if folder is None else str(folder)
    return EngineOptions(**{"model_path": str(model), "cost_dir": cost_dir, **more})


def chosen(model: Path, folder: Path | None, **more: object) -> WeightLayout:
    return chosen_layout(options(model, folder, **more), GgufHeader(model), Kernels())


def keep(model: Path, folder: Path, layout: WeightLayout, kernels: Kernels) -> None:
    Measurements(folder).put(LayoutKey.of(model, kernels.products.instruction_set), layout)


def test_it_is_measured_once_and_kept(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pauses: list[None] = []
    asked = options(model, tmp_path)
    first = chosen_layout(asked, GgufHeader(model), Kernels(), pause=lambda: pauses.append(None))
    assert first.repacked_cost is not None
    assert first.repacked_cost > 0
    assert pauses
    assert f"weights: {first} (measured once" in caplog.text
    assert len(list(tmp_path.iterdir())) == 1
    again: list[None] = []
    second = chosen_layout(asked, GgufHeader(model), Kernels(), pause=lambda: again.append(None))
    assert (second, again) == (first, [])
    assert known_layout(asked, GgufHeader(model)) == first


@pytest.mark.parametrize("repacked", [True, False])
def test_what_was_kept_is_what_an_engine_does(model: Path, tmp_path: Path, repacked: bool) -> None:
    kernels = switch_kernels("off")
    keep(model, tmp_path, WeightLayout(repacked=repacked, repacked_cost=0.5), kernels)
    with loaded(model, kernels="off", cost_dir=str(tmp_path)) as backend:
        assert backend.info.weights.repacked == repacked
        assert ("repacked; " in backend.info.computed_by["weights"]) == repacked
        assert len(generate(backend, PROMPT, 4)) == 4


def test_options_go_first_and_kernels_have_their_own_layouts(model: Path, tmp_path: Path) -> None:
    keep(model, tmp_path, WeightLayout(repacked=True), Kernels(products=KernelState(instruction_set="avx2")))
    keep(model, tmp_path, WeightLayout(left_to_ggml=("q4_0",)), Kernels())
    assert not chosen(model, tmp_path).repacked
    for asked in (True, False):
        layout = chosen(model, tmp_path, repack=asked)
        assert (layout.repacked, layout.left_to_ggml) == (asked, ("q4_0",))
        assert known_layout(options(model, tmp_path, repack=asked), GgufHeader(model)) == layout


def test_what_cannot_be_kept(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert chosen(model, None) == known_layout(options(model, None), GgufHeader(model)) == WeightLayout()
    (tmp_path / "file").write_text("in the way")
    assert chosen(model, tmp_path / "file" / "folder") == WeightLayout()
    assert "cannot keep what was measured" in caplog.text


def test_weights_that_nobody_multiplies_are_not_measured(tmp_path: Path) -> None:
    floats = tiny_model_path("f32")
    assert chosen(floats, tmp_path) == WeightLayout()
    assert len(list(tmp_path.iterdir())) == 1, "kept: it is not looked for again"


def test_experts_are_measured_apart(tmp_path: Path) -> None:
    path = tmp_path / "mixture.gguf"
    source, shape = tiny_model_path(shape="tiny-qwen3moe"), ("--type", "q8_0")
    command = [sys.executable, "-m", "openai_cpu_server", "quantize", str(source), str(path), *shape]
    subprocess.run(command, check=True, capture_output=True)
    groups = list(timed_products(GgufHeader(path), Kernels()))
    assert {(group.type, group.are_experts) for group in groups} == {("q8_0", False), ("q8_0", True)}
    assert all(group.ours is None and min(group.ggml.values()) > 0 for group in groups)


# -- the choice ----------------------------------------------------------------------------------------


def times(
    kind: str, ggml: float, *, ours: float | None = None, repacked: float | None = None, large: float = 1.0
) -> ProductTimes:
    """The same for steps of all sizes; repacked, those of more than one token take `large` times as long."""

    def steps(one: float | None, factor: float = 1.0) -> dict[int, float] | None:
        return None if one is None else {n: one * (factor if n > 1 else 1) for n in STEPS}

    plain = steps(ggml)
    assert plain is not None
    return ProductTimes(kind, steps(ours), plain, steps(repacked, large))


@pytest.mark.parametrize(
    ("groups", "repacked", "left"),
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
def test_the_faster_layout(groups: list[ProductTimes], repacked: bool, left: tuple[str, ...]) -> None:
    layout = faster_layout(groups)
    assert (layout.repacked, layout.left_to_ggml) == (repacked, left)
