"""What the engine tells of its steps."""

from __future__ import annotations

import msgspec

from openai_cpu_server.child_processes.spawn import death_cause
from openai_cpu_server.contract.messages import EngineOptions, StepDone, StepFigures, Submit
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority, Sampling
from openai_cpu_server.engine.generating import build_core
from tests.fakes import FAKE_INFO, FakeBackend

CURVE = CostCurve(step_ms=((1, 5.0), (256, 1000.0)), attended_ms=0.0)


def request(name: str, *, prompt: int = 20, output: int = 8, **more: object) -> GenerationRequest:
    return GenerationRequest(
        id=name,
        tokens=tuple(range(100, 100 + prompt)),
        max_tokens=output,
        sampling=Sampling(seed=1, ignore_eos=True),
        **more,  # type: ignore[arg-type]
    )


def steps_of(*requests: GenerationRequest, kv_tokens: int = 4096) -> list[StepFigures]:
    info = msgspec.structs.replace(FAKE_INFO, kv_tokens=kv_tokens)
    core = build_core(EngineOptions(model_path=""), FakeBackend(info), CURVE)
    for one in requests:
        core.handle(Submit(request=one))
    found = []
    while core.has_work:
        found += [m.figures for m in core.step() if isinstance(m, StepDone) and m.figures is not None]
    return found


def test_tokens_and_sequences_of_steps() -> None:
    figures = [f for f in steps_of(request("a", prompt=20, output=4)) if f.tokens]
    assert [f.tokens for f in figures] == [20, 1, 1, 1]
    assert [f.sampled for f in figures] == [1, 1, 1, 1]
    assert {f.sequences for f in figures} == {1}
    assert all(f.predicted_ms > 0 and f.elapsed_ms >= 0 for f in figures)


def test_forced_tokens_are_told_once() -> None:
    constraint = Constraint(grammar="?abc?de")
    figures = steps_of(request("a", output=50, constraint=constraint))
    sampled, forced = sum(f.sampled for f in figures), sum(f.forced for f in figures)
    assert sampled + forced == 8  # two free ones, five others, and the end
    assert (sampled, forced) == (2, 6)


def test_forced_beginnings_are_told() -> None:
    figures = steps_of(request("a", output=50, constraint=Constraint(grammar="ab?")))
    assert (sum(f.sampled for f in figures), sum(f.forced for f in figures)) == (1, 3)


def test_an_output_that_is_forced_as_a_whole_is_told_without_a_step() -> None:
    (figures,) = steps_of(request("a", output=3, constraint=Constraint(grammar="abcd")))
    assert (figures.tokens, figures.sampled, figures.forced) == (0, 0, 3)


def test_preemptions_are_told_once() -> None:
    crowd = [request(f"b{i}", prompt=60 + i, output=60, priority=Priority.BATCH) for i in range(4)]
    figures = steps_of(*crowd, kv_tokens=256)
    assert sum(f.preemptions for f in figures) > 0


def test_causes_of_death_are_few_words() -> None:
    assert [death_cause(s) for s in (-9, -6, 1, 0, None, -60)] == [
        "SIGKILL",
        "SIGABRT",
        "exit_1",
        "exit_0",
        "unknown",
        "signal_60",
    ]
