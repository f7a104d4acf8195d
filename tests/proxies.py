"""Real proxies in front of a test's server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S, wait_until


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def running_proxy(command: list[str], port: int, env: dict[str, str] | None = None) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)

    def listens() -> bool:
        assert process.poll() is None, process.communicate()[0].decode()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        wait_until(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def nginx(folder: Path, http: str) -> list[str]:
    """Return the command of an nginx with this content of its block `http`."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    user = "user root; " if os.geteuid() == 0 else ""  # other workers cannot write into the folder
    config = folder / "nginx.conf"
    config.write_text(
        f"{user}daemon off; pid {folder}/pid; error_log stderr; events {{}}"
        f" http {{ access_log off; {temporary}\n{http} }}"
    )
    return [tool("nginx"), "-c", str(config), "-p", str(folder)]
