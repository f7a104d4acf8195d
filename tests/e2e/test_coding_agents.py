"""Codex and Claude Code, as npm has them, against the real server with SmolLM2 and no other network.

Each downloads some hundred MB, and reads a prompt of thousands of tokens: run them by hand, with `-m slow`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import ServerProcess

pytestmark = [
    pytest.mark.native,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]
_LIMIT_S = 900
CODEX = """\
model = "smollm2"
model_provider = "own"
approval_policy = "never"
sandbox_mode = "read-only"
[model_providers.own]
name = "own"
base_url = "{url}/v1"
wire_api = "responses"
stream_idle_timeout_ms = 600000
"""


@pytest.fixture(scope="module")
def coding_server(smollm2: Path) -> Iterator[ServerProcess]:
    options = ("--ctx-size", "32768", "--max-output-tokens", "200")
    with ServerProcess("--model", f"smollm2={smollm2}", "--tool-format", "generic", *options) as process:
        yield process


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def installed(package: str, program: str, folder: Path) -> str:
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), package]
    subprocess.run(command, check=True, capture_output=True, timeout=_LIMIT_S)
    return str(folder / "node_modules" / ".bin" / program)


def run(command: list[str], home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    return subprocess.run(
        command,
        cwd=home / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


def test_codex_answers(coding_server: ServerProcess, home: Path) -> None:
    program = installed("@openai/codex", "codex", home / "npm")
    (home / "config.toml").write_text(CODEX.format(url=coding_server.url))
    answer = home / "answer.txt"
    command = [program, "exec", "--skip-git-repo-check", "--output-last-message", str(answer), "Say hello."]
    done = run(command, home, CODEX_HOME=str(home))
    assert done.returncode == 0, done.stderr[-3000:]
    assert answer.read_text().strip(), done.stderr[-3000:]


def test_claude_code_answers(coding_server: ServerProcess, home: Path) -> None:
    program = installed("@anthropic-ai/claude-code", "claude", home / "npm")
    command = [program, "--print", "--model", "smollm2", "--tools", "", "Say hello."]
    done = run(
        command,
        home,
        ANTHROPIC_BASE_URL=coding_server.url,
        ANTHROPIC_AUTH_TOKEN="none",
        ANTHROPIC_SMALL_FAST_MODEL="smollm2",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        CLAUDE_CODE_MAX_OUTPUT_TOKENS="100",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
