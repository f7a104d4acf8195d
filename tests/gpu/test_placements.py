"""Models on a device. A model of each kind of memory, with all, half or none of it there, answers as plain
llama.cpp on the CPU, but for ties. An absent, full or lost device costs a log line, and the CPU serves.

Each model has an engine process. `pytest -m slow tests/gpu` compiles shaders for each kind of model, once.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import Experiment
from openai_cpu_server.contract.offload import ALL_LAYERS, ON_CPU, Offload
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.child import HangLimits
from openai_cpu_server.engine_client.client import EngineClient
from tests.architectures.plain import PlainLlama
from tests.architectures.test_architectures import (
    LONG_PROMPTS,
    LONGER,
    PERSON,
    Comparison,
    ask,
    check_drafts_after_a_restart,
    check_kill,
    check_reuse,
    engine_of,
    running,
)
from tests.gpu.conftest import Device
from tests.server_process import ServerProcess
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
"""Draft model of each shape. It has the same vocabulary, and its memory can be cut back."""
CASES = [
    (shape, place)
    for shape in SHAPES
    for place in PLACES
    if place != "experts on the CPU" or SHAPES[shape] == "experts"
]


@pytest.fixture(scope="session")
def shaders() -> Path:
    """Folder of the driver's compiled shaders. Compiling takes minutes; the next run reuses them."""
    return user_cache_dir() / "gpu-tests"


@pytest.mark.parametrize(("shape", "place"), CASES)
async def test_a_model_on_a_device(
    shape: str, place: str, shaders: Path, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, offload = with_all_experts(tiny_model_path(shape=shape), tmp_path / "model.gguf"), PLACES[place]
    options = {
        "cache_file": str(tmp_path / "cache"),
        "cost_dir": str(shaders),
        "hang_limits": HangLimits(step_s=None),  # the first step of a kind compiles shaders, slowly
        "max_seqs": 8,
        "offload": offload,
    }
    drafts = {
        "draft_model_path": str(tiny_model_path(shape=DRAFTING[shape])),
        "draft_offload": ON_CPU if offload.wants_device else ALL,
        "experiment": Experiment(always_drafts=True),
    }
    with PlainLlama(model) as plain:  # in the environment of the tests, without a device
        for name, value in device.environment.items():
            monkeypatch.setenv(name, value)
        comparison = Comparison(plain)
        async with running(engine_of(model, **options)) as engine:
            check_placement(engine, offload, device.kind)
            await check_reuse(engine, comparison)
            await check_interactive_request(engine, comparison)
            await check_kill(engine, comparison)
            check_placement(engine, offload, device.kind)
            await ask(engine, LONGER)
        async with running(engine_of(model, **options, **drafts)) as engine:
            await check_drafts_after_a_restart(engine, comparison)
    assert (comparison.differences, comparison.missing) == ([], [])
    assert not (offload.wants_device and device.keeps_shaders) or list((shaders / "shaders").rglob("*"))


def with_all_experts(model: Path, copy: Path) -> Path:
    """Copy the model and let each token take all experts, if any. Otherwise rounding may choose them.
    Plain llama.cpp is off by up to 2.6 nats on a device at 7 of 240 places, and by 0.03 without experts."""
    shutil.copy(model, copy)
    fields = (reader := gguf.GGUFReader(copy, "r+")).fields
    for name, field in fields.items():
        if name.endswith(".expert_used_count"):
            field.parts[field.data[0]][0] = fields[name.replace("_used_", "_")].contents()
    reader.data.flush()
    return copy


def check_placement(engine: EngineClient, offload: Offload, kind: str) -> None:
    assert engine.state is EngineState.READY
    placement = engine.info.placement
    if not offload.wants_device:
        assert placement is None
        return
    assert placement is not None, "nothing went to a device"
    assert placement.device is not None, placement
    assert placement.device.kind == kind, placement
    expected = placement.num_layers if offload.gpu_layers == "all" else offload.gpu_layers
    assert placement.layers == expected, placement
    assert placement.weights_bytes > 0
    assert (placement.cells_bytes > 0) == (offload.kv_on_gpu is not False), placement
    assert (placement.cpu_expert_layers > 0) == (offload.cpu_moe > 0), placement


async def check_interactive_request(engine: EngineClient, comparison: Comparison) -> None:
    """Send a person's request beside batch work. It may wait for a step, which a device cannot interrupt."""
    has_begun = asyncio.Event()
    rows = [
        asyncio.create_task(ask(engine, prompt, priority=Priority.BATCH, first_token=has_begun))
        for prompt in LONG_PROMPTS
    ]
    await has_begun.wait()
    person = await ask(engine, PERSON)
    comparison.expect(not all(row.done() for row in rows), "a person in front of batch work")
    comparison.same("a newcomer", PERSON, person)
    for prompt, answer in zip(LONG_PROMPTS, await asyncio.gather(*rows), strict=True):
        comparison.same("batch work", prompt, answer)


BODY = {"model": "tiny", "prompt": "Once upon a time", "temperature": 0, "logit_bias": {"2": -100}}
LENGTH = 200


class DeviceServer(ServerProcess):
    """Server of the tiny model, all layers on the device. It is a fresh process with another library."""

    def __init__(self, environment: dict[str, str], *options: str) -> None:
        model = ("--model", f"tiny={tiny_model_path()}", "--gpu-layers", "all", "--hang-seconds", "0")
        super().__init__(*model, *options, env=environment, is_fresh=True, is_ready_at_once=True)

    def __enter__(self) -> DeviceServer:
        super().__enter__()
        self.wait_for("(ready): ", timeout_s=600)  # the first start compiles shaders
        return self

    def answer(self) -> str:
        answer = httpx.post(f"{self.url}/v1/completions", json=BODY | {"max_tokens": 24}, timeout=300)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def placement(self) -> str:
        return str(self.status()["models"]["tiny"]["placement"])

    def has_logged(self, words: str) -> bool:
        return any(words in line for line in self.lines)


@pytest.fixture(scope="module")
def expected() -> str:
    """Answer of the CPU alone."""
    with ServerProcess("--model", f"tiny={tiny_model_path()}") as server:
        return DeviceServer.answer(server)  # type: ignore[arg-type]


def test_a_machine_without_a_driver(device: Device, expected: str) -> None:
    with DeviceServer(device.environment | device.without) as server:
        assert server.answer() == expected
        assert "'layers': 0" in server.placement()
        assert server.has_logged("finds no device beside the CPU")


def test_a_device_that_is_full(device: Device, expected: str) -> None:
    with device.full_memory(), DeviceServer(device.environment | device.full) as server:
        assert server.answer() == expected
        assert "'layers': 0" in server.placement()
        assert server.has_logged("the CPU serves" if device.full else "all on the CPU: ")


def test_a_device_that_is_lost(device_environment: dict[str, str], tmp_path: Path) -> None:
    """The driver's exception ends the process during an answer, and the CPU continues it."""
    with DeviceServer(device_environment, "--cache-dir", str(tmp_path)) as server:
        assert "'layers': 3" in server.placement()
        whole = httpx.post(f"{server.url}/v1/completions", json=BODY | {"max_tokens": LENGTH}, timeout=300)
        assert whole.json()["usage"]["completion_tokens"] == LENGTH
        body = BODY | {"max_tokens": LENGTH, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.engine.send_signal(signal.SIGABRT)
            rest = list(lines)
        assert [line for line in rest if f'"completion_tokens":{LENGTH}' in line.replace(" ", "")]
        assert "'layers': 0" in server.placement()
        assert server.has_logged("the CPU serves from here on")


def inspect(environment: dict[str, str], *options: str) -> dict[str, Any]:
    """Return the report about the only device."""
    command = [sys.executable, "-m", "openai_cpu_server", "inspect", str(tiny_model_path()), "--json"]
    done = subprocess.run([*command, *options], env=environment, stdout=subprocess.PIPE, check=True)
    (report,) = json.loads(done.stdout)["devices"]
    return dict(report)


def test_inspect_reports_what_would_go_to_the_device(device: Device) -> None:
    report = inspect(device.environment, "--gpu-layers", "2")
    assert report["device"]["name"] == device.name
    assert (report["asked"], report["split"], report["why"]) == (2, "2 of 3 layers", None)
    assert report["takes"]["weights"] > 0
    assert inspect(device.environment, "--gpu-layers", "all")["takes"]["cells"] > 0


def test_the_fastest_split_is_measured_once(device_environment: dict[str, str], tmp_path: Path) -> None:
    folder = ("--cache-dir", str(tmp_path))
    model = ("--model", f"tiny={tiny_model_path()}", "--gpu-layers", "auto", "--hang-seconds", "0")
    fresh = {"is_fresh": True, "is_ready_at_once": True, "env": device_environment}
    with ServerProcess(*model, *folder, "--calibrate", "idle", **fresh) as server:  # type: ignore[arg-type]
        server.wait_for("(measuring which split) is the fastest")
        server.wait_for("(ready): ", timeout_s=800)
        placement = str(server.status()["models"]["tiny"]["placement"])
    report = inspect(device_environment, *folder)
    costs = {split["split"]: split["turn_ms"] for split in report["measured"]}
    assert costs.keys() == {"3 of 3 layers", "3 of 3 layers, cells on the CPU", "the CPU alone"}
    assert costs["the CPU alone"]
    assert costs["3 of 3 layers"]  # the time may not suffice for a third
    with ServerProcess(*model, *folder, **fresh) as server:  # type: ignore[arg-type]
        server.wait_for(rf"splits: ({report['split']}) \(measured", timeout_s=800)
        server.wait_for("(ready): ", timeout_s=800)
        assert str(server.status()["models"]["tiny"]["placement"]) == placement
    assert ("'layers': 0" in placement) == (report["split"] == "the CPU alone")
    assert not [line for line in server.lines if "measuring which split" in line]
