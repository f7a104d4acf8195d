"""Codex and Claude Code, as npm has them, without any other network, against a server whose model says what a
test tells it.

Each downloads some hundred MB, and reads a prompt of thousands of tokens: run them by hand, with `-m slow`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.scripted_server import MODEL, heard, scripted_server

pytestmark = [
    pytest.mark.native,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]
_LIMIT_S = 900
CODEX = """\
model = "{model}"
model_provider = "own"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.own]
name = "own"
base_url = "{url}/v1"
wire_api = "responses"
stream_idle_timeout_ms = 600000
[features]
multi_agent = false
goals = false
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def installed(package: str, program: str, folder: Path) -> str:
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), package]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install {package}: {done.stderr[-300:]}")
    return str(folder / "node_modules" / ".bin" / program)


def run(command: list[str], home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    pipes: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(command, cwd=home / "work", env=environment, **pipes, timeout=_LIMIT_S)


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> str:
    return installed("@openai/codex", "codex", tmp_path_factory.mktemp("codex"))


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> str:
    return installed("@anthropic-ai/claude-code", "claude", tmp_path_factory.mktemp("claude"))


def called(name: str, **arguments: str) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, separators=(",", ":"))
    return f"<tool_call>\n{call}\n</tool_call>"


PATCH = """\
*** Begin Patch
*** Update File: greet.py
@@
-print('hello')
+print('good morning')
*** End Patch
"""


def test_codex_edits_a_file(codex: str, home: Path) -> None:
    """With the server's catalog it has its custom tool."""
    file = home / "work" / "greet.py"
    file.write_text("print('hello')\n")
    with scripted_server(
        home / "script.json", [called("apply_patch", input=PATCH), "Done, it greets now."]
    ) as url:
        catalog = home / "models.json"
        catalog.write_text(httpx.get(f"{url}/v1/models?client_version=0").text)
        config = CODEX.format(model=MODEL, url=url)
        (home / "config.toml").write_text(f'model_catalog_json = "{catalog}"\n{config}')
        command = [codex, "exec", "--skip-git-repo-check", "Greet them."]
        done = run(command, home, CODEX_HOME=str(home))
    assert done.returncode == 0, done.stderr[-3000:]
    assert file.read_text() == "print('good morning')\n"
    first, second = heard(home / "script.json")
    assert "Greet them." in first
    assert '"apply_patch", "arguments"' in second
    assert "Done, it greets now." in done.stdout


def test_claude_code_edits_a_file(claude: str, home: Path) -> None:
    file = home / "work" / "greet.py"
    file.write_text("print('hello')\n")
    edit = {"old_string": "hello", "new_string": "good morning"}
    outputs = [called("Read", file_path=str(file)), called("Edit", file_path=str(file), **edit), "Done."]
    with scripted_server(home / "script.json", outputs) as url:
        command = [claude, "--print", "--model", MODEL, "--permission-mode", "acceptEdits"]
        command += ["--tools", "Read,Edit", "--", "Greet them."]
        environment = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1000",
            "IS_SANDBOX": "1",
        }
        done = run(command, home, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert file.read_text() == "print('good morning')\n"
    assert len(heard(home / "script.json")) == len(outputs)
    assert done.stdout.strip() == "Done."
