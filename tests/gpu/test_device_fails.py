"""A device that is absent, full or lost: a line says so, and the CPU serves."""

from __future__ import annotations

import signal
from pathlib import Path

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
