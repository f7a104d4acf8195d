"""What goes to a device, told before anything is loaded; one that is absent, full or lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gpu.conftest import Device
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.timeout(900)]

ASKED = {"model": "tiny", "prompt": "Once upon a time", "temperature": 0, "logit_bias": {"2": -100}}
LENGTH = 200


class Served(ServerProcess):
    """A tiny model, all of it wished on the device. It imports for itself: the library is another."""

    def __init__(self, environment: dict[str, str], *options: str) -> None:
        model = ("--model", f"tiny={tiny_model_path()}", "--gpu-layers", "all", "--hang-seconds", "0")
        super().__init__(*model, *options, env=environment, is_fresh=True, is_ready_at_once=True)

    def __enter__(self) -> Served:
        super().__enter__()
        self.wait_for("(ready): ", timeout_s=600)  # the first start compiles shaders
        return self

    def answer(self) -> str:
        answer = httpx.post(f"{self.url}/v1/completions", json=ASKED | {"max_tokens": 24}, timeout=300)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def placement(self) -> str:
        return str(self.status()["models"]["tiny"]["placement"])

    def says(self, words: str) -> bool:
        return any(words in line for line in self.lines)


@pytest.fixture(scope="module")
def expected() -> str:
    """What the CPU answers by itself."""
    with ServerProcess("--model", f"tiny={tiny_model_path()}") as server:
        return Served.answer(server)  # type: ignore[arg-type]


def test_a_machine_without_a_driver(device: Device, expected: str) -> None:
    with Served(device.environment | device.without) as server:
        assert server.answer() == expected
        assert "'layers': 0" in server.placement()
        assert server.says("knows no device here beside the CPU")


def test_a_device_that_is_full(device: Device, expected: str) -> None:
    with device.taken(), Served(device.environment | device.full) as server:
        assert server.answer() == expected
        assert "'layers': 0" in server.placement()
        assert server.says("the CPU serves" if device.full else "all on the CPU: ")


def test_a_device_that_is_lost(device_environment: dict[str, str], tmp_path: Path) -> None:
    """The driver's exception ends the process in the midst of an answer: the CPU goes on with it."""
    with Served(device_environment, "--cache-dir", str(tmp_path)) as server:
        assert "'layers': 3" in server.placement()
        whole = httpx.post(f"{server.url}/v1/completions", json=ASKED | {"max_tokens": LENGTH}, timeout=300)
        assert whole.json()["usage"]["completion_tokens"] == LENGTH
        asked = ASKED | {"max_tokens": LENGTH, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=300) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.engine.send_signal(signal.SIGABRT)
            rest = list(lines)
        assert [line for line in rest if f'"completion_tokens":{LENGTH}' in line.replace(" ", "")]
        assert "'layers': 0" in server.placement()
        assert server.says("the CPU serves from here on")


pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.timeout(1800)]


def inspected(environment: dict[str, str], *options: str) -> dict[str, Any]:
    """What is told of the only device."""
    command = [sys.executable, "-m", "openai_cpu_server", "inspect", str(tiny_model_path()), "--json"]
    found = subprocess.run([*command, *options], env=environment, stdout=subprocess.PIPE, check=True)
    (told,) = json.loads(found.stdout)["devices"]
    return dict(told)


def test_inspect_tells_what_would_go_to_the_device(device: Device) -> None:
    told = inspected(device.environment, "--gpu-layers", "2")
    assert told["device"]["name"] == device.name
    assert (told["asked"], told["split"], told["why"]) == (2, "2 of 3 layers", None)
    assert told["takes"]["weights"] > 0
    assert inspected(device.environment, "--gpu-layers", "all")["takes"]["cells"] > 0


def test_the_fastest_split_is_measured_once(device_environment: dict[str, str], tmp_path: Path) -> None:
    folder = ("--cache-dir", str(tmp_path))
    model = ("--model", f"tiny={tiny_model_path()}", "--gpu-layers", "auto", "--hang-seconds", "0")
    fresh = {"is_fresh": True, "is_ready_at_once": True, "env": device_environment}
    with ServerProcess(*model, *folder, "--calibrate", "idle", **fresh) as server:  # type: ignore[arg-type]
        server.wait_for("(measuring which split) is the fastest")
        server.wait_for("(ready): ", timeout_s=800)
        placed = str(server.status()["models"]["tiny"]["placement"])
    told = inspected(device_environment, *folder)
    costs = {one["split"]: one["turn_ms"] for one in told["measured"]}
    assert costs.keys() == {"3 of 3 layers", "3 of 3 layers, cells on the CPU", "the CPU alone"}
    assert costs["the CPU alone"]
    assert costs["3 of 3 layers"]  # for a third there may be no time left
    with ServerProcess(*model, *folder, **fresh) as server:  # type: ignore[arg-type]
        server.wait_for(rf"splits: ({told['split']}) \(measured", timeout_s=800)
        server.wait_for("(ready): ", timeout_s=800)
        assert str(server.status()["models"]["tiny"]["placement"]) == placed
    assert ("'layers': 0" in placed) == (told["split"] == "the CPU alone")
    assert not [line for line in server.lines if "measuring which split" in line]
