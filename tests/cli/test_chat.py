"""`chat`, `run` and `ps`: clients of a running server, or of one that the command starts."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.gates import suspended
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

COMMAND = (sys.executable, "-m", "openai_cpu_server")
SHORT = ("--max-output-tokens", "4", "--calibrate", "never", "--threads", "1")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--model", "demo", "--api-key", "s3cret", "--max-output-tokens", "100") as server:
        yield server


class Terminal:
    """A command in a new terminal."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        self.seen = ""
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.execve(COMMAND[0], [*COMMAND, *arguments], env)

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Return the output up to the pattern, and remove it from `seen`."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.search(pattern, self.seen)):
            assert select.select([self._file], [], [], max(0, deadline - time.monotonic()))[0], self.seen
            self.seen += os.read(self._file, 4096).decode(errors="replace")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self._file)
        return os.waitstatus_to_exitcode(status)


def test_a_conversation_in_the_terminal(server: ServerProcess, tmp_path: Path) -> None:
    """Check input, history, and that Ctrl-C stops an answer but not the program."""
    env = {**os.environ, "TERM": "dumb", "OCS_API_KEY": "s3cret", "XDG_DATA_HOME": str(tmp_path)}
    terminal = Terminal("chat", "--url", server.url, env=env)
    terminal.wait_for(">>> ")
    terminal.type("/?\n")
    assert "/clear" in terminal.wait_for("stops an answer\r\n>>> ")
    terminal.type('"""two\n')
    terminal.wait_for(r"\.\.\. ")
    terminal.type('lines"""\n')
    terminal.wait_for(">>> $")
    with suspended(server.engine.pid):
        terminal.type("again\n")
        terminal.wait_for("again\r\n")
        terminal.type("\x03")
        terminal.wait_for(">>> ")
    terminal.type("/nonsense\n")
    assert "unknown command /nonsense" in terminal.wait_for(">>> ")
    terminal.type("\x03")
    terminal.wait_for("/bye or Ctrl-D leaves\r\n>>> ")
    terminal.type("/bye\n")
    assert terminal.end() == 0
    history = tmp_path / "openai-cpu-server" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "again\n" in history.read_text()


def test_a_piped_text_is_answered_by_a_server_of_the_command() -> None:
    command = [*COMMAND, "run", "demo", "Say:", *SHORT]
    done = subprocess.run(
        command, input="hello", capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("chat nonsense-model hi", "unknown model 'nonsense-model'"),
        ("chat demo hi --port 1", "--port is an option of the server"),
        ("chat demo hi --systm x", "unknown option --systm; did you mean --system?"),
        ("chat demo hi --url {url} --ctx-size 4096", "unknown option --ctx-size"),
        ("chat demo hi --url {url}", "Missing or incorrect API key"),
        ("chat other hi --url {url} --api-key s3cret", "The model 'other' does not exist"),
        ("chat --url {url} --api-key s3cret other hi", "The model 'other' does not exist"),
        (
            "chat demo hi --url http://127.0.0.1:1",
            "no server answers at http://127.0.0.1:1 (Connection refused)",
        ),
        ("ps --url ftp://x", "'ftp://x' is not an address such as"),
    ],
)
def test_a_refused_command_prints_one_line(arguments: str, line: str, server: ServerProcess) -> None:
    done = warm.run(*arguments.format(url=server.url).split())
    assert (done.returncode, done.stdout) == (2, "")
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ps_lists_the_loaded_models(server: ServerProcess) -> None:
    listed = warm.run("ps", "--url", f"{server.url}/v1/", "--api-key", "s3cret", "--json")
    assert [model["name"] for model in json.loads(listed.stdout)] == ["demo"]
    assert re.search(r"\ndemo +\d", warm.run("ps", "--url", server.url, "--api-key", "s3cret").stdout)


def test_run_opens_the_page(tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new\nmv {opened}.new {opened}\n')
    browser.chmod(0o755)
    env = {**os.environ, "BROWSER": str(browser)}
    process = warm.start("run", "demo", "--port", "0", "--jobs-db", "none", *SHORT, env=env)
    wait_until(opened.is_file)
    process.send_signal(signal.SIGTERM)
    output = process.end()
    assert f"the page is at {opened.read_text().strip()}\n" in output
