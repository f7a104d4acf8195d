"""The health check of the image says what `/health` says, by its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from openai_cpu_server.contract.engine import EngineState
from tests.deploy.dockerfile import ROOT


class Health(BaseHTTPRequestHandler):
    says = "ready"

    def do_GET(self) -> None:
        assert self.path == "/health"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"status": Health.says}).encode())

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def exit_code(question: str, port: int) -> int:
    command = [sys.executable, "-IS", str(ROOT / "deploy" / "healthcheck.py"), question]
    environment = {**os.environ, "OCS_PORT": str(port)}
    return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode


@pytest.mark.parametrize(
    ("state", "is_ready", "is_alive"),
    [
        ("ready", True, True),
        ("degraded", True, True),
        ("restarting", True, True),  # streams go on in a moment: a new container would end them
        ("loading", False, True),
        ("failed", False, False),
    ],
)
def test_states(port: int, state: str, is_ready: bool, is_alive: bool) -> None:
    assert state in {*(known.value for known in EngineState), "degraded"}
    Health.says = state
    assert (exit_code("ready", port) == 0, exit_code("alive", port) == 0) == (is_ready, is_alive)


def test_nobody_answers() -> None:
    assert exit_code("alive", 1) == 1
