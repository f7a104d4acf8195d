"""The Dockerfile's steps, run as they are written, make an image that serves. Where there is no Docker too.

What Docker would pull, the image of Python, is made by debootstrap: the same release of Debian, its Python.
Minutes of compiling; run it with `-m slow`, as root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from openai_cpu_server.kernels.build import LEVELS, level_library
from tests.deploy.builder import Image, build
from tests.deploy.dockerfile import DOCKERFILE, stages
from tests.waiting import DEADLINE_S

_TOOLS = ("debootstrap", "bwrap", "setpriv")
_LOAD_S = 120
_MOST_BYTES = 260_000_000
"""Of what the image adds to that of Python; it was 216 MB."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if missing := [tool for tool in _TOOLS if not shutil.which(tool)]:
        pytest.skip(f"there is no {missing[0]}")
    if os.geteuid() != 0:
        pytest.skip("only root makes other roots")
    work = tmp_path_factory.mktemp("image")
    try:
        base = work / "base"
        _python_image(base)
        yield build(stages(), base, work, {"CPU": "portable"})
    finally:
        shutil.rmtree(work)


def _python_image(root: Path) -> None:
    """What the first line of the Dockerfile names, near enough: Debian, Python and pip."""
    release = DOCKERFILE.read_text().split("ARG PYTHON=")[1].split()[0].rpartition("-")[2]
    packages = "--include=ca-certificates,python3,python3-pip"
    command = ["debootstrap", "--variant=minbase", packages, release, str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for name, target in (("python", "python3"), ("pip", "pip3")):
        (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/{target}")
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")


@contextlib.contextmanager
def served(image: Image, data: Path) -> Iterator[str]:
    """The container's program as the image says it runs: its user, a root that is read-only, its volume."""
    last = stages()[-1]
    user, group = last.last("USER").value.split(":")
    data.mkdir(mode=0o770)
    os.chown(data, int(user), int(group))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*last.last("ENTRYPOINT").command, *last.last("CMD").command]
    with subprocess.Popen(
        [*_container(image, data), f"--reuid={user}", f"--regid={group}", "--", *command],
        env={**image.environment, "OCS_PORT": str(port)},
    ) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """As `docker stop`: SIGTERM to process 1 of the container. Raises TimeoutExpired if it does not end."""
    inside = psutil.Process(process.pid).children()
    try:
        inside[0].terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        for one in inside:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()  # and with process 1 all others in there


def _container(image: Image, data: Path) -> list[str]:
    root = ["bwrap", "--ro-bind", str(image.root), "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    rest = ["--bind", str(data), "/data", "--cap-add", "ALL", "--chdir", image.folder]
    own = ["--unshare-pid", "--as-pid-1", "--"]
    return [*root, *rest, *own, "setpriv", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]


def _ask_until_loaded(url: str) -> None:
    end = time.monotonic() + _LOAD_S
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url + "/ready").status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError("it did not become ready")


def test_it_serves_as_nobody_special_from_a_root_that_is_read_only(image: Image, tmp_path: Path) -> None:
    check = stages()[-1].last("HEALTHCHECK").value.partition(" CMD ")[2]
    with served(image, tmp_path / "data") as url:
        _ask_until_loaded(url)
        answer = httpx.post(
            url + "/v1/completions", json={"prompt": "Hello", "max_tokens": 8}, timeout=DEADLINE_S
        )
        health = httpx.get(url + "/health").json()
        environment = {**image.environment, "OCS_PORT": url.rpartition(":")[2]}
        healthy = subprocess.run(
            [*_container(image, tmp_path / "data"), "--", *json.loads(check)],
            env=environment,
            capture_output=True,
            text=True,
        )
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 8
    assert not health["kernels"]["products"].startswith("off")
    assert (healthy.returncode, healthy.stdout) == (0, "ready\n")


def test_it_has_kernels_for_every_level(image: Image) -> None:
    folder = next(image.root.glob("opt/venv/lib/python3*/site-packages/openai_cpu_server/kernels"))
    names = {path.name for path in folder.glob("libocs_kernels*.so")}
    assert names == {level_library(level).name for level in LEVELS[os.uname().machine]}


def test_it_is_small_and_has_no_tools_to_build_with(image: Image) -> None:
    size = sum(
        path.lstat().st_size
        for top in ("opt", "usr")
        for path in (image.root / top).rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    base = sum(
        path.lstat().st_size
        for path in (image.root.parent / "base" / "usr").rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    assert size - base < _MOST_BYTES, f"the image adds {(size - base) / 1e6:.0f} MB"
    assert not list((image.root / "usr/bin").glob("*g++*"))
    assert not list(image.root.glob("opt/venv/bin/pip*"))
