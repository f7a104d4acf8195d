"""Commands, programs and options of the README and the manual work unchanged."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.config.command_line import peer_options
from openai_cpu_server.config.settings import Settings
from tests.docs.markdown import DOCS, PAGES, README, ROOT, blocks, code
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

_ADDRESS = "http://127.0.0.1:8000"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+\b")
_OTHER_OPTIONS = """
build build-arg busy cap-drop cpuset-cpus ctx-checkpoints detach device env file find-links format from
gpu gpus group-add header health-check-interval-secs health-failure-threshold inline-snapshot
load-monitor-interval mode no-binary no-cache-dir no-deps no-repack now pip-args policy publish pull
read-only rm set spec stop-timeout strict swa-full tag target tmpfs uninstall values volume
weight-format with worker-overload-token-usage worker-urls
"""
"""Options of Docker, Helm, gateways and other programs, and of scripts in bash."""


_FILES = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("files", log_level="ERROR")
@server.tool()
def search_files(pattern: str) -> str:
    "Search files."
    return ""
server.run("stdio")
"""
"""Stand-in for the MCP server of docs/mcp.md, which would be downloaded."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    config = tmp_path_factory.mktemp("config") / "c.toml"
    config.write_text(f'[mcp.files]\ncommand = "{sys.executable}"\nargs = ["-c", {json.dumps(_FILES)}]\n')
    options = ("--served-model-name", "smollm2", "--max-output-tokens", "50", "--config", str(config))
    with ServerProcess("--model", str(tiny_model_path()), *options) as process:
        yield process


@pytest.mark.native
@pytest.mark.parametrize("page", [README, DOCS / "start.md"], ids=lambda page: page.name)
def test_the_curl_command_streams_an_answer(server: ServerProcess, page: Path) -> None:
    (command,) = (block for block in blocks(page, "console") if block.startswith("$ curl"))
    line = command.removeprefix("$ ").replace(_ADDRESS, server.url)
    assert subprocess.check_output(["bash", "-c", line], text=True).rstrip().endswith("data: [DONE]")


@pytest.mark.native
@pytest.mark.thorough
def test_python_programs_work(server: ServerProcess, tmp_path: Path) -> None:
    """Run the programs as one, in the order of the pages: later ones use the client of the first."""
    (row,) = blocks(DOCS / "batch-jobs.md", "json")
    (tmp_path / "rows.jsonl").write_text(row)
    programs = [program for page in PAGES for program in blocks(page, "python")]
    assert len(programs) >= 4
    command = [sys.executable, "-c", "\n".join(programs).replace(_ADDRESS, server.url)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"custom_id":"1"' in done.stdout.replace(" ", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_scripts_and_options_exist(page: Path) -> None:
    texts = list(code(page))
    named = {name for text in texts for name in re.findall(r"(?<![\w/.])scripts/[\w./]+", text)}
    assert [name for name in named if not (ROOT / name.rstrip(".")).exists()] == []
    commands = [name for text in texts for name in re.findall(r"^\$ (scripts/\S+)", text, re.M)]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)
    options = {option for text in texts for option in _OPTION.findall(text)}
    peers = peer_options()
    others = {*peers.same, *(f"--{name}" for name in _OTHER_OPTIONS.split())}
    assert {option for option in options - own_options() - others if not peers.advice(option)} == set()


@functools.cache
def own_options() -> set[str]:
    """Return the options of `serve`, and those that are string constants in the programs."""
    sources = [*ROOT.glob("openai_cpu_server/**/*.py"), *ROOT.glob("scripts/**/*.py")]
    written = {option for source in sources for option in re.findall(r'"(--[a-z-]+)"', source.read_text())}
    kebabs = [name.replace("_", "-") for name in Settings.model_fields]
    return {*(f"--{kebab}" for kebab in kebabs), *(f"--no-{kebab}" for kebab in kebabs), *written}
