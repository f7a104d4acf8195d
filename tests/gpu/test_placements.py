"""A model of each kind of memory, with all, half or none of it on a device: it answers as plain llama.cpp
does on the CPU but for ties, and keeps what is promised of any model.

An engine process serves each. `pytest -m slow tests/gpu` compiles shaders for each kind of model, once.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import gguf
import pytest

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.offload import ALL_LAYERS, ON_CPU, Offload
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.scheduling import Experiment
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.watchdog import HangLimits
from tests.architectures.plain import PlainLlama
from tests.architectures.test_architectures import (
    LONG_PROMPTS,
    LONGER,
    PERSON,
    Comparison,
    ask,
    engine_of,
    is_drafted_for_after_a_restart,
    outlives_its_engine,
    reuses,
    running,
)
from tests.gpu.conftest import Device
from tests.tiny_model import tiny_model_path

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.anyio, pytest.mark.timeout(1800)]

ALL = Offload(gpu_layers="all")
PLACES = {
    "all": ALL,
    "half": Offload(gpu_layers=2),
    "none": ON_CPU,
    "cells on the CPU": Offload(gpu_layers="all", kv_on_gpu=False),
    "experts on the CPU": Offload(gpu_layers="all", cpu_moe=ALL_LAYERS),
}
SHAPES = {
    "tiny": "full attention",
    "tiny-gemma3": "windows",
    "tiny-mamba": "state",
    "tiny-qwen35": "state and attention",
    "tiny-qwen3moe": "experts",
}
DRAFTING = {"tiny": "tiny"} | dict.fromkeys([shape for shape in SHAPES if shape != "tiny"], "tiny-qwen3moe")
"""What drafts for each: it has the same vocabulary, and its memory can be cut back."""
CASES = [
    (shape, place)
    for shape in SHAPES
    for place in PLACES
    if place != "experts on the CPU" or SHAPES[shape] == "experts"
]


@pytest.fixture(scope="session")
def shaders() -> Path:
    """Where the driver keeps what it compiled, which takes minutes: the next run finds it."""
    return user_cache_dir() / "gpu-tests"


@pytest.mark.parametrize(("shape", "place"), CASES)
async def test_a_model_on_a_device(
    shape: str, place: str, shaders: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = with_all_experts(tiny_model_path(shape=shape), tmp_path / "model.gguf"), PLACES[place]
    options = {
        "cache_file": str(tmp_path / "cache"),
        "cost_dir": str(shaders),
        "hang_limits": HangLimits(step_s=None),  # the first step of a kind compiles shaders, slowly
        "max_seqs": 8,
        "offload": asked,
    }
    drafts = {
        "draft_model_path": str(tiny_model_path(shape=DRAFTING[shape])),
        "draft_offload": ON_CPU if asked.wants_device else ALL,
        "experiment": Experiment(always_drafts=True),
    }
    with PlainLlama(model) as plain:  # in the environment of the tests, without a device
        for name, value in device.environment.items():
            monkeypatch.setenv(name, value)
        seen = Comparison(plain)
        async with running(engine_of(model, **options)) as engine:
            says_where_it_is(engine, asked, device.kind)
            await reuses(engine, seen)
            await lets_a_person_in(engine, seen)
            await outlives_its_engine(engine, seen)
            says_where_it_is(engine, asked, device.kind)
            await ask(engine, LONGER)
        async with running(engine_of(model, **options, **drafts)) as engine:
            await is_drafted_for_after_a_restart(engine, seen)
    assert (seen.differences, seen.missing) == ([], [])
    assert not (asked.wants_device and device.keeps_shaders) or list((shaders / "shaders").rglob("*"))


def with_all_experts(model: Path, copy: Path) -> Path:
    """The model, of which each token takes all experts, if there are any. Which of them it takes else may be
    decided by rounding: plain llama.cpp is off by up to 2.6 nats on a device at 7 of 240 places, and by 0.03
    without experts."""
    shutil.copy(model, copy)
    fields = (reader := gguf.GGUFReader(copy, "r+")).fields
    for name, used in fields.items():
        if name.endswith(".expert_used_count"):
            used.parts[used.data[0]][0] = fields[name.replace("_used_", "_")].contents()
    reader.data.flush()
    return copy


def says_where_it_is(engine: EngineClient, asked: Offload, kind: str) -> None:
    assert engine.state is EngineState.READY
    assert engine.info is not None
    placement = engine.info.placement
    if not asked.wants_device:
        assert placement is None
        return
    assert placement is not None, "nothing went to a device"
    assert placement.device is not None, placement
    assert placement.device.kind == kind, placement
    expected = placement.num_layers if asked.gpu_layers == "all" else asked.gpu_layers
    assert placement.layers == expected, placement
    assert placement.weights_bytes > 0
    assert (placement.cells_bytes > 0) == (asked.kv_on_gpu is not False), placement
    assert (placement.cpu_expert_layers > 0) == (asked.cpu_moe > 0), placement


async def lets_a_person_in(engine: EngineClient, seen: Comparison) -> None:
    """Batch work is under way. On a device a step cannot be interrupted, so it may be waited for."""
    begun = asyncio.Event()
    rows = [
        asyncio.create_task(ask(engine, prompt, priority=Priority.BATCH, begun=begun))
        for prompt in LONG_PROMPTS
    ]
    await begun.wait()
    person = await ask(engine, PERSON)
    seen.expect(not all(row.done() for row in rows), "a person in front of batch work")
    seen.same("a newcomer", PERSON, person)
    for prompt, got in zip(LONG_PROMPTS, await asyncio.gather(*rows), strict=True):
        seen.same("batch work", prompt, got)
