"""What goes to a device is told before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import Device
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

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
    """Whichever it is, each start takes it, and `inspect` tells it."""
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
