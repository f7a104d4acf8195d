"""`openai-cpu-server ray` without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.thorough


def command(*arguments: str, modules: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ}
    if modules is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(modules), env.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "openai_cpu_server", "ray", *arguments],
        capture_output=True,
        text=True,
        env=env,
    )


def test_without_ray_one_line_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('there is none', name='ray')")
    done = command(modules=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"openai-cpu-server: Ray is not installed: {sys.executable} -m pip install 'ray"
    )
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_command_prints_the_file_for_serve_run(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('model = ["demo"]\nport = 8123\n[ray]\nname = "ours"\ningress = "proxy"\n')
    printed = command(str(config), "--print-config").stdout
    (application,) = yaml.safe_load(printed)["applications"]
    assert application["import_path"] == "openai_cpu_server.replicas.ray.application:build"
    assert application["args"] == {"config": str(config)}
    assert (application["name"], yaml.safe_load(printed)["http_options"]["port"]) == ("ours", 8123)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ray]\nreplicas = 0\n", "ray"),
        ("[ray]\nreplicas = 3\nmax_replicas = 2\n", "max_replicas is less than replicas"),
        ("[ray]\nnodes = 2\n", "nodes"),
        ('ssl_certfile = "a"\nssl_keyfile = "b"\n[ray]\ningress = "proxy"\n', "plain HTTP"),
        ('answer_cache = "off"\nsemantic_cache = 0.9\n', "--semantic-cache needs an --answer-cache"),
        ("[ray]\nreplicas = two", "config.toml: Invalid value (at line 2, column 12)"),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    done = command(str(config), "--print-config")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
