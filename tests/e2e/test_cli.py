"""The command line as a process: what it says before anything runs."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.waiting import DEADLINE_S
from tests.warm import run

COMMANDS = ("serve", "batch", "grammar", "inspect", "key", "quantize", "tune", "version")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def said(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "openai_cpu_server", *arguments)


def test_help_lists_the_commands_and_each_has_its_own() -> None:
    listed = said("--help")
    assert listed.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command}" in listed.stdout
        if command != "version":
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
    done = python("-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_what_serves_does_not_import_the_hubs_library() -> None:
    script = "import sys, openai_cpu_server.cli.serve; print('huggingface_hub' in sys.modules)"
    assert python("-c", script).stdout == "False\n"
