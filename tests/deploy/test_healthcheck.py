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
from tests.deploy import ROOT


class Health(BaseHTTPRequestHandler):
    status: str

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"status": Health.status}).encode())

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


def is_well(question: str, port: int) -> bool:
    command = [sys.executable, "-IS", str(ROOT / "deploy" / "healthcheck.py"), question]
    environment = {**os.environ, "OCS_PORT": str(port)}
    return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(
    ("status", "is_ready", "is_alive"),
    [
        (EngineState.READY.value, True, True),
        ("degraded", True, True),
        (EngineState.RESTARTING.value, True, True),  # a new container would end its streams
        (EngineState.LOADING.value, False, True),
        (EngineState.FAILED.value, False, False),
    ],
)
def test_its_exit_code_says_whether_a_server_is_ready_and_alive(
    port: int, status: str, is_ready: bool, is_alive: bool
) -> None:
    Health.status = status
    assert (is_well("ready", port), is_well("alive", port)) == (is_ready, is_alive)
    assert not is_well("alive", 1), "nobody answers there"
