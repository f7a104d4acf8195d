"""A server with `[mcp.NAME]`, a real MCP server over its pipes, the official `openai` client."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai.types.responses.response_output_item import McpCall

from tests.e2e.serving import sdk
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path, tiny_projector_path
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
CONFIG = f"""
[mcp.tools]
command = "{sys.executable}"
args = ["-m", "tests.tool_server"]
cwd = "{ROOT}"
env = {{PYTHONPATH = "${{FOR_TOOLS}}"}}
tools = ["add", "look"]
"""


def test_a_model_calls_a_tool_and_the_tools_process_ends_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    monkeypatch.setenv("FOR_TOOLS", str(ROOT))
    with ServerProcess("--model", "demo", "--config", str(config)) as server, sdk(server) as client:
        assert children(server.process.pid) == [], "no request has used the tools yet"
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


def test_a_vision_model_gets_the_pictures_of_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other contents become text, in which no part is lost."""
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    shutil.copyfile(tiny_model_path(sees=True), tmp_path / "model.gguf")
    shutil.copyfile(tiny_projector_path("gemma3", rows_width=256), tmp_path / "mmproj-f16.gguf")
    monkeypatch.setenv("FOR_TOOLS", str(ROOT))
    model = str(tmp_path / "model.gguf")
    with ServerProcess("--model", model, "--config", str(config)) as server, sdk(server) as client:
        outputs: dict[str, tuple[str | None, int]] = {}
        for kind in ("picture", "resource", "sound", "text", "damaged"):
            call: Any = {"server_label": "tools", "name": "look", "arguments": json.dumps({"at": kind})}
            response = client.responses.create(
                input=[
                    {"role": "user", "content": "What is there?"},
                    {"type": "mcp_approval_request", "id": "mcpr_1", **call},
                    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
                ],
                tools=[{"type": "mcp", "server_label": "tools", "require_approval": "always"}],
                tool_choice="none",
                max_output_tokens=4,
            )
            (called,) = [item for item in response.output if isinstance(item, McpCall)]
            details = response.usage.input_tokens_details.model_dump()
            outputs[kind] = called.output, details.get("image_tokens", 0)
    pattern = r"Here it is:\n!\[picture\]\(data:image/png;base64,[\w+/=]+\)"
    for kind in ("picture", "resource"):
        output, num_tokens = outputs[kind]
        assert re.fullmatch(pattern, output or "")
        assert num_tokens == 16
    assert outputs["sound"] == ("Here it is:\n[audio: audio/wav, which cannot be shown]", 0)
    assert outputs["text"] == ("Here it is:\na page", 0)
    assert outputs["damaged"][1] == 0


def children(pid: int) -> list[psutil.Process]:
    processes = psutil.Process(pid).children(recursive=True)
    return [child for child in processes if "tests.tool_server" in child.cmdline()]
