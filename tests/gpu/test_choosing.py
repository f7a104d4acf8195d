"""What goes to a device is told before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.tiny_model import tiny_model_path

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.timeout(900)]


def test_inspect_tells_what_would_go_to_the_device(device_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "openai_cpu_server", "inspect", str(tiny_model_path()), "--json"]
    found = subprocess.run(
        [*command, "--gpu-layers", "2"], env=device_environment, stdout=subprocess.PIPE, check=True
    )
    (told,) = json.loads(found.stdout)["devices"]
    assert told["device"]["name"] == "Vulkan0"
    assert (told["asked"], told["split"], told["why"]) == (2, "2 of 3 layers", None)
    assert told["takes"]["weights"] > 0
