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


@pytest.mark.parametrize("has_catalog", [True, False])
def test_codex_edits_a_file(codex: str, home: Path, *, has_catalog: bool) -> None:
    """With the server's catalog it has its custom tool; without that it runs commands."""
    file = home / "work" / "greet.py"
    file.write_text("print('hello')\n")
    edit = called("apply_patch", input=PATCH)
    if not has_catalog:
        edit = called("exec_command", cmd='sed -i "s/hello/good morning/" greet.py')
    with scripted_server(home / "script.json", [edit, "Done, it greets now."]) as url:
        config = CODEX.format(model=MODEL, url=url)
        if has_catalog:
            catalog = home / "models.json"
            catalog.write_text(httpx.get(f"{url}/v1/models?client_version=0").text)
            config = f'model_catalog_json = "{catalog}"\n{config}'
        (home / "config.toml").write_text(config)
        command = [codex, "exec", "--skip-git-repo-check", "Greet them."]
        done = run(command, home, CODEX_HOME=str(home))
    assert done.returncode == 0, done.stderr[-3000:]
    assert file.read_text() == "print('good morning')\n"
    first, second = heard(home / "script.json")
    assert "Greet them." in first
    assert ('"apply_patch", "arguments"' in second) == has_catalog
    assert "Done, it greets now." in done.stdout


def test_codex_compacts_over_a_websocket(codex: str, home: Path) -> None:
    """Where the server stands in for OpenAI, Codex warms it up, and lets it sum up its conversations."""
    outputs = ["Warm.", called("exec_command", cmd="ls"), "A summary.", "There is nothing."]
    with scripted_server(home / "script.json", outputs) as url:
        (home / "models.json").write_text(httpx.get(f"{url}/v1/models?client_version=0").text)
        (home / "config.toml").write_text(
            f'model = "{MODEL}"\nopenai_base_url = "{url}/v1"\nmodel_auto_compact_token_limit = 3000\n'
            f'model_catalog_json = "{home / "models.json"}"\n'
            'approval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
        )
        command = [codex, "exec", "--skip-git-repo-check", "List the files."]
        done = run(command, home, CODEX_HOME=str(home), CODEX_API_KEY="none")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("There is nothing.")
    prompts = heard(home / "script.json")
    assert len(prompts) == len(outputs)
    assert "summary of the conversation so far:\nA summary." in prompts[-1]
    assert prompts[2].startswith(prompts[1].removesuffix("<|assistant|>"))


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
