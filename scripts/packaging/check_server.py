"""Serves the demo model from what is installed in this Python, asks it, and says what computed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

_COMMAND = ("serve", "--model", "demo", "--port", "0", "--calibrate", "never", "--jobs-db", "none")


def main() -> None:
    program = Path(sys.executable).with_name("openai-cpu-server")
    # Away from the sources, which Python would take instead of what is installed.
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        subprocess.Popen([program, *_COMMAND], cwd=elsewhere, stderr=subprocess.PIPE, text=True) as server,
    ):
        try:
            print(_asked(server))
        finally:
            server.terminate()
    if server.returncode != 0:
        raise SystemExit(f"the server ended with {server.returncode}")


def _asked(server: subprocess.Popen[str]) -> str:
    address = _told(server, r"listening on (http://127\.0\.0\.1:\d+)")
    _told(server, "(ready): ")
    body = {"prompt": "Once", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer, urllib.request.urlopen(f"{address}/health") as health:
        text, kernels = json.load(answer)["choices"][0]["text"], json.load(health)["kernels"]
    if kernels["products"].startswith("off"):
        raise SystemExit(f"the kernels are off: {kernels}")
    return f"serves: Once{text!r}; kernels: {json.dumps(kernels)}"


def _told(server: subprocess.Popen[str], pattern: str) -> str:
    assert server.stderr is not None
    lines = []
    for line in server.stderr:
        lines.append(line)
        if found := re.search(pattern, line):
            return found[1]
    raise SystemExit("the server ended:\n" + "".join(lines))


if __name__ == "__main__":
    main()
