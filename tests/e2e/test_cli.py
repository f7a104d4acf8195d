"""The command line as a process: what it says before anything runs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.warm import run

COMMAND = [sys.executable, "-m", "openai_cpu_server"]
COMMANDS = ("serve", "batch", "grammar", "inspect", "key", "quantize", "tune", "version")


def said(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_the_commands() -> None:
    done = said("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command}" in done.stdout


@pytest.mark.parametrize("command", ["serve", "batch", "grammar", "inspect", "key", "quantize", "tune"])
def test_each_command_has_help(command: str) -> None:
    done = run(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: openai-cpu-server {command} " in done.stdout


def test_a_command_that_does_not_exist() -> None:
    done = said("sevre")
    assert done.returncode == 2
    assert done.stderr.startswith("openai-cpu-server: there is no command 'sevre'; the commands are serve, ")
    assert len(done.stderr.splitlines()) == 1


def test_a_new_key_is_not_written_where_its_lines_go() -> None:
    done = said("key", "ann")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, '[keys."ann"]')
    assert "sk-ocs-" in done.stderr
    assert "sk-ocs-" not in done.stdout


def test_ctrl_c_while_it_is_imported_says_nothing() -> None:
    # One import among the many sends the signal, so that it comes in time on any machine.
    script = """
import os, signal, sys
from openai_cpu_server.cli.main import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "openai_cpu_server.server.run":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["openai-cpu-server", "serve", "--help"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_what_serves_does_not_import_the_hubs_library() -> None:
    script = "import sys, openai_cpu_server.cli.serve; print('huggingface_hub' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
