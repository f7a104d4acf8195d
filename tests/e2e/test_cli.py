"""The command line as a process: help, wrong commands and options, and signals while it starts."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.waiting import DEADLINE_S
from tests.warm import run

NAMES = "serve run chat batch grammar inspect key list models ps pull quantize rm tune version"
COMMANDS = NAMES.split()


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_help_lists_the_commands_and_each_command_has_help() -> None:
    overview = python("-m", "openai_cpu_server", "--help")
    assert overview.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command}" in overview.stdout
        if command != "version":
            done = run(command, "--help")
            assert (done.returncode, done.stderr) == (0, "")
            assert f"usage: openai-cpu-server {command} " in done.stdout


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("sevre", "; did you mean serve?"),
        ("qwen3.5-4b", ": `openai-cpu-server serve qwen3.5-4b` serves a model, "),
        ("cp", ": a running server does this for POST /api/copy, which `ollama cp` sends"),
    ],
)
def test_a_command_that_does_not_exist(word: str, hint: str) -> None:
    done = run(word)
    assert done.returncode == 2
    assert done.stderr.startswith(f"openai-cpu-server: unknown command '{word}'{hint}")
    assert len(done.stderr.splitlines()) == 1


def test_ollamas_command_names_and_the_command_help_work() -> None:
    assert run("show", "--help").stdout == run("help", "inspect").stdout != ""
    assert run("help").stdout == run("--help").stdout


@pytest.mark.parametrize(
    "wrong",
    ["batch", "grammar", "inspect demo", "list", "models", "ps", "pull x", "quantize --type x", "rm x"],
)
def test_a_misspelt_option_of_a_command_is_one_line(wrong: str) -> None:
    done = run(*wrong.split(), "--nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


SIGNALLING_IMPORTS = ("openai_cpu_server.cli.main", "openai_cpu_server.errors", "msgspec", "the command")
"""Modules whose import sends the signal, so that it arrives in time on any machine."""
INTERRUPT = """
import os, runpy, sys
_, number, module, *arguments = sys.argv

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        stem, _, last = name.rpartition(".")
        is_command = stem == "openai_cpu_server.cli" and last not in ("main", "plain_text")
        if name == module or (module == "the command" and is_command):
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Interrupt())
sys.argv = ["openai-cpu-server", *arguments]
runpy.run_module("openai_cpu_server", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("command", "module", "number"),
    [
        ("key", "openai_cpu_server.cli.main", signal.SIGINT),
        *(
            pytest.param(command, module, number, marks=pytest.mark.slow)
            for command in COMMANDS[:-1]
            for module in SIGNALLING_IMPORTS
            for number in (signal.SIGINT, signal.SIGTERM)
        ),
    ],
)
def test_a_signal_during_imports_ends_a_command_silently(command: str, module: str, number: int) -> None:
    done = python("-c", INTERRUPT, str(int(number)), module, command, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_serving_does_not_import_the_hubs_library() -> None:
    script = "import sys, openai_cpu_server.cli.serve; print('huggingface_hub' in sys.modules)"
    assert python("-c", script).stdout == "False\n"
