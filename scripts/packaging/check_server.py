"""Serves the demo model with this Python's packages, sends a request, and reports the kernels in use."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OPTIONS = ("--port", "0", "--calibrate", "never")
_POLL_S = 0.1


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
            server.terminate()
            server.wait()
    if server.returncode != 0:
        raise SystemExit(f"the server ended with {server.returncode}")


def fetch(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, {"content-type": "application/json"})
    ) as answer:
        return json.load(answer)


def _wait_until_ready(server: subprocess.Popen[bytes], log: Path) -> str:
    while server.poll() is None:
        text = log.read_text()
        if found := re.search(r"listening on (http://127\.0\.0\.1:\d+)(?=.*ready: )", text, re.DOTALL):
            return found[1]
        time.sleep(_POLL_S)
    raise SystemExit(f"the server ended:\n{log.read_text()}")


if __name__ == "__main__":
    main()
