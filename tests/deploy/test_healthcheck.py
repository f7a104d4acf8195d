"""The exit code of the image's health check is the state in `/health`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler

import pytest

from openai_cpu_server.contract.engine import EngineState
from tests.deploy import ROOT
from tests.e2e.serving import answering_http


class Health(BaseHTTPRequestHandler):
    status: str

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"status": Health.status}).encode())

    def log_message(self, *args: object) -> None:
        """Keep the access log out of the test's output."""


def is_well(check: str, port: str) -> bool:
    command = [sys.executable, "-IS", str(ROOT / "deploy" / "healthcheck.py"), check]
    environment = {**os.environ, "OCS_PORT": port}
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
def test_the_exit_code_reports_whether_a_server_is_ready_and_alive(
    status: str, is_ready: bool, is_alive: bool
) -> None:
    Health.status = status
    with answering_http(Health) as url:
        port = url.rpartition(":")[2]
        assert (is_well("ready", port), is_well("alive", port)) == (is_ready, is_alive)
    assert not is_well("alive", "1"), "no server listens there"
