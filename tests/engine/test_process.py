"""What the engine process knows of costs when it begins."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.messages import StepDone, Submit
from openai_cpu_server.engine.generating import EngineCore
from openai_cpu_server.engine.process import calibrated
from openai_cpu_server.llama.measure.calibrate import CurveKey
from openai_cpu_server.llama.measure.measurements import Measurements
from tests.engine.test_core import CURVE, OPTIONS
from tests.fakes import FAKE_INFO, FakeBackend
from tests.scheduler.driver import request
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.thorough

INFO = msgspec.structs.replace(FAKE_INFO, path=str(tiny_model_path()))


def core(folder: Path) -> EngineCore:
    options = msgspec.structs.replace(OPTIONS, calibrate="never", cost_dir=str(folder))
    return calibrated(options, FakeBackend(INFO), lambda fraction: None)


def predicted_ms(core: EngineCore) -> float:
    """Of a step that computes 99 tokens."""
    core.handle(Submit(request=request("a", prompt=100, output=1)))
    (done,) = (message for message in core.step() if isinstance(message, StepDone))
    return done.figures.predicted_ms


def test_who_never_measures_uses_what_an_earlier_start_has_kept(tmp_path: Path) -> None:
    Measurements(tmp_path).put(CurveKey.of(INFO, OPTIONS), CURVE)
    assert predicted_ms(core(tmp_path)) == pytest.approx(5 + 995 * 99 / 255)


def test_who_never_measures_and_knows_nothing_goes_by_a_guess(tmp_path: Path) -> None:
    unknowing = core(tmp_path)
    assert not unknowing.is_guessing
    assert predicted_ms(unknowing) < 100
    assert not list(tmp_path.iterdir())
