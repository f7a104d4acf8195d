"""The image, built by Docker or Podman, which takes minutes: run the tests with `-m slow`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator

import httpx
import pytest

from openai_cpu_server.kernels.build import LEVELS, level_library
from tests.deploy import ROOT
from tests.waiting import DEADLINE_S, wait_until

_MAX_ADDED_BYTES = 260_000_000
"""Maximum size that the image adds to that of Python; it was 216 MB."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
Docker = Callable[..., str]


@pytest.fixture(scope="module")
def docker() -> Docker:
    for program in ("docker", "podman"):
        if shutil.which(program) and subprocess.run([program, "info"], capture_output=True).returncode == 0:
            return lambda *arguments: subprocess.check_output([program, *arguments], text=True).strip()
    pytest.skip("there is no Docker that runs, and no Podman")


@pytest.fixture(scope="module")
def image(docker: Docker) -> str:
    options = ("--build-arg", "CPU=portable", "--file", str(ROOT / "deploy" / "Dockerfile"))
    return docker("build", "--quiet", *options, str(ROOT)).splitlines()[-1]


@pytest.fixture
def container(docker: Docker, image: str) -> Iterator[str]:
    """A container as the manual starts it: a root that is read-only, and no capabilities."""
    confined = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    name = docker("run", "--detach", *confined, "--publish", "127.0.0.1::8000", image)
    yield name
    docker("rm", "--force", "--volumes", name)


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url + "/ready", timeout=DEADLINE_S).status_code == 200
    return False


def test_it_serves_unprivileged_from_a_read_only_root(docker: Docker, container: str) -> None:
    url = f"http://{docker('port', container, '8000').splitlines()[0]}"
    wait_until(lambda: is_ready(url))
    body = {"prompt": "Hello", "max_tokens": 8}
    answer = httpx.post(url + "/v1/completions", json=body, timeout=DEADLINE_S)
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 8)
    assert not httpx.get(url + "/health", timeout=DEADLINE_S).json()["kernels"]["products"].startswith("off")
    assert docker("exec", container, "python", "-I", "/opt/healthcheck.py", "ready") == "ready"
    assert docker("exec", container, "id", "-u") == "10001"
    docker("stop", container)
    assert docker("wait", container) == "0"


def test_it_has_kernels_for_every_level_and_no_tools_to_build_with(docker: Docker, container: str) -> None:
    package = "/opt/venv/lib/python3*/site-packages/openai_cpu_server"
    machine, *files = docker(
        "exec", container, "sh", "-c", f"uname -m; ls {package}/kernels /usr/bin /opt/venv/bin"
    ).split()
    kernels = {name for name in files if name.startswith("libocs_kernels")}
    assert kernels == {level_library(level).name for level in LEVELS[machine]}
    assert [name for name in files if "g++" in name or name.startswith("pip")] == []


def test_it_is_small(docker: Docker, image: str) -> None:
    sizes = docker("history", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image).splitlines()
    ours = [line for line in sizes if "/opt/venv" in line or "libgomp1" in line]
    assert ours
    assert sum(int(line.split()[0]) for line in ours) < _MAX_ADDED_BYTES
