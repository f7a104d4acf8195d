"""Serves the demo model from what is installed in this Python, asks it, and says what computed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_OPTIONS = ("--port", "0", "--calibrate", "never")
_KEPT_LINES = 30


def main() -> None:
    with serving(Path(sys.executable), "--model", "demo", "--jobs-db", "none") as address:
        body = {"prompt": "Once", "max_tokens": 8, "temperature": 0}
        text = ask(f"{address}/v1/completions", body)["choices"][0]["text"]
        kernels = ask(f"{address}/health")["kernels"]
    if kernels["products"].startswith("off"):
        raise SystemExit(f"the kernels are off: {kernels}")
    print(f"serves: Once{text!r}; kernels: {json.dumps(kernels)}")


@contextlib.contextmanager
def serving(python: Path, *options: str, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Serve from what a Python has installed. Yields the address when the server is ready."""
    # Away from the sources, which Python would take instead of what is installed.
    command = [python, "-m", "openai_cpu_server", "serve", *_OPTIONS, *options]
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        subprocess.Popen(
            command, cwd=elsewhere, env=environment, stderr=subprocess.PIPE, text=True
        ) as server,
    ):
        try:
            address = _wait_for(server, r"listening on (http://127\.0\.0\.1:\d+)")
            _wait_for(server, "(ready): ")
            # It would wait for its log to be read.
            threading.Thread(target=deque, args=(server.stderr, 0), daemon=True).start()
            yield address
        finally:
            server.terminate()
    if server.returncode != 0:
        raise SystemExit(f"the server ended with {server.returncode}")


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, {"content-type": "application/json"})
    ) as answer:
        return json.load(answer)


def _wait_for(server: subprocess.Popen[str], pattern: str) -> str:
    assert server.stderr is not None
    lines = deque[str](maxlen=_KEPT_LINES)
    for line in server.stderr:
        lines.append(line)
        if found := re.search(pattern, line):
            return found[1]
    raise SystemExit("the server ended:\n" + "".join(lines))


if __name__ == "__main__":
    main()
