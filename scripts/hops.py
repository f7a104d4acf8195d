"""Counts the files and functions that one streamed chat passes through.

    scripts/hops.py [--root CHECKOUT] [--list]

Starts the server of the checkout with the demo model, lets it idle, and sends it one streamed chat, three
times. The API process, the reader processes and the engine process record the called functions of the
package, in all threads, without imports and start-up. A function counts if each of the three chats calls it
and the idle server does not, which excludes heartbeats and gauges. To compare with an old commit, create a
work tree of it and pass its path with --root.
"""

from __future__ import annotations

import argparse
import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import psutil

_RECORDER = Path(__file__).parent / "hops_recorder" / "sitecustomize.py"
_SERVE = "serve --model demo --port 0 --calibrate never --jobs-db sqlite:// --drain-seconds 0"
_QUESTIONS = ["What is the sea?", "Why is the sky blue?", "Who was the first on the moon?"]
_SWITCHED_S = 0.2
_IDLE_S = 2.0
_PATIENCE_S = 120
_KINDS = {"api": "API process", "engine": "engine process"}
"""Processes that alone call functions of these folders."""
Call = tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="a checkout")
    parser.add_argument("--list", action="store_true", help="print the files, each with its functions")
    arguments = parser.parse_args()
    package = arguments.root.resolve() / "openai_cpu_server"
    processes = chat_calls(package)
    for title, calls in (*processes.items(), ("all", set[Call]().union(*processes.values()))):
        files = sorted({file for file, *_ in calls})
        print(f"{title}: {len(files)} files, {len(calls)} functions")
        for file in files if arguments.list and title != "all" else ():
            names = ", ".join(sorted(name for path, _, name in calls if path == file))
            print(f"  {Path(file).relative_to(package)}: {names}")
    return 0


def chat_calls(package: Path) -> dict[str, set[Call]]:
    found: dict[str, list[set[Call]]] = {}
    for path in _recorded(package):
        windows = [
            {call for row in rows.splitlines() if _counts(package, call := tuple(row.split("\t")))}
            for rows in path.read_text().split(".\n")[:-1]
        ]
        if any(windows):
            folders = {Path(call[0]).relative_to(package).parts[0] for calls in windows for call in calls}
            kind = next((_KINDS[folder] for folder in _KINDS if folder in folders), "reader processes")
            for calls, more in zip(found.setdefault(kind, [set() for _ in windows]), windows, strict=True):
                calls |= more
    assert {"API process", "engine process"} <= set(found), "the processes ran another copy of the package"
    return {kind: set.intersection(*chats) - idle for kind, (idle, *chats) in sorted(found.items())}


def _recorded(package: Path) -> list[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hops-"))
    atexit.register(shutil.rmtree, folder)
    shutil.copy(_RECORDER, folder)
    log = folder / "log"
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{package.parent}"}
    command = [sys.executable, "-m", package.name, *_SERVE.split()]
    with log.open("w") as out:
        # Python looks for the package in the working directory first.
        server = subprocess.Popen(command, cwd=package.parent, stdout=out, stderr=out, env=env)
    try:
        _wait(lambda: "ready: " in log.read_text(), log)
        url = re.findall(r"listening on (http://\S+:\d+)", log.read_text())[0]
        running = {f"{one.pid}.calls" for one in psutil.Process(server.pid).children(recursive=True)}
        files = [path for path in folder.glob("*.calls") if path.name in running | {f"{server.pid}.calls"}]
        windows = [partial(time.sleep, _IDLE_S), *(partial(_chat, url, question) for question in _QUESTIONS)]
        for number, act in enumerate(windows, 1):
            (folder / "on").touch()
            time.sleep(_SWITCHED_S)
            act()
            (folder / "on").unlink()
            _wait(lambda: all(path.read_text().count(".\n") == number for path in files), log)  # noqa: B023
    finally:
        server.terminate()
        server.wait()
    return files


def _counts(package: Path, call: tuple[str, ...]) -> bool:
    """Count functions and lambdas; a comprehension belongs to the function around it."""
    return call[0].startswith(f"{package}{os.sep}") and (call[2][0] != "<" or call[2] == "<lambda>")


def _chat(url: str, question: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "stream": True}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=_PATIENCE_S).raise_for_status()
    assert answer.text.rstrip().endswith("[DONE]"), answer.text


def _wait(is_so: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain; the server's log:\n{log.read_text()}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
