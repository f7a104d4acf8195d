"""A server with `[mcp.NAME]`, a real MCP server over its pipes, the official `openai` client."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import psutil
import pytest
from openai.types.responses.response_output_item import McpCall

from tests.e2e.serving import sdk
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
CONFIG = f"""
[mcp.tools]
command = "{sys.executable}"
args = ["-m", "tests.tool_server"]
cwd = "{ROOT}"
env = {{PYTHONPATH = "${{FOR_TOOLS}}"}}
tools = ["add"]
"""


@pytest.mark.timeout(120)
def test_a_model_calls_a_tool_and_the_tools_process_ends_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    monkeypatch.setenv("FOR_TOOLS", str(ROOT))
    with ServerProcess("--model", "demo", "--config", str(config)) as server, sdk(server) as client:
        assert children(server.process.pid) == [], "nobody has wanted it"
        response = client.responses.create(
            input="What is 2+3?",
            tools=[{"type": "mcp", "server_label": "tools", "require_approval": "never"}],
            tool_choice={"type": "mcp", "server_label": "tools", "name": "add"},
            temperature=0,
            max_output_tokens=120,
        )
        called = response.output[1]
        assert isinstance(called, McpCall)
        arguments = json.loads(called.arguments)
        assert (called.status, called.output) == ("completed", str(arguments["a"] + arguments["b"]))
        (child,) = children(server.process.pid)
        assert "mcp_calls=1" in server.wait_for("(id=.* route=POST /v1/responses .*)")
        server.stop(signal.SIGKILL)
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def children(pid: int) -> list[psutil.Process]:
    found = psutil.Process(pid).children(recursive=True)
    return [child for child in found if "tests.tool_server" in child.cmdline()]
