"""Serves the demo model with this Python's packages, sends a request, and reports the kernels in use."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OPTIONS = ("--port", "0", "--calibrate", "never")
_POLL_S = 0.1
START_S = 300.0
"""Time limit of a start, which may convert a model."""
_REQUEST_S = 120.0
_STOP_S = 60.0
_LOG_CHARACTERS = 4000


def main() -> None:
    with serving(Path(sys.executable), "--model", "demo", "--jobs-db", "none") as address:
        body = {"prompt": "Once", "max_tokens": 8, "temperature": 0}
        text = fetch(f"{address}/v1/completions", body)["choices"][0]["text"]
        kernels = fetch(f"{address}/health")["kernels"]
    if kernels["products"].startswith("off"):
        raise SystemExit(f"the kernels are off: {kernels}")
    print(f"serves: Once{text!r}; kernels: {json.dumps(kernels)}")


@contextlib.contextmanager
def serving(python: Path, *options: str) -> Iterator[str]:
    # Away from the sources, which Python would take instead of what is installed.
    command = [python, "-m", "openai_cpu_server", "serve", *_OPTIONS, *options]
    with tempfile.TemporaryDirectory() as elsewhere, Path(elsewhere, "log").open("w+") as log:
        server = subprocess.Popen(command, cwd=elsewhere, stderr=log)
        try:
            yield _wait_until_ready(server, Path(log.name))
        finally:
            _stop(server)
    if server.returncode != 0:
        raise SystemExit(f"the server ended with {server.returncode}")


def fetch(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url} answers {error.code}: {error.read().decode()}") from None


def _wait_until_ready(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while server.poll() is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"the server is not ready after {START_S:.0f} s:\n{_log_end(log)}")
        text = log.read_text()
        if found := re.search(r"listening on (http://127\.0\.0\.1:\d+)(?=.*ready: )", text, re.DOTALL):
            return found[1]
        time.sleep(_POLL_S)
    raise SystemExit(f"the server ended:\n{_log_end(log)}")


def _log_end(log: Path) -> str:
    return log.read_text()[-_LOG_CHARACTERS:]


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
