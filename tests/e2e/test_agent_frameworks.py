"""Agents of frameworks that tests/e2e/test_frameworks.py does not run: two parallel calls, their results and
an answer, whole and streamed.

The frameworks have an environment of their own, because they pin packages that this project uses. The
variables `OCS_AGENTS_PYTHON` and `OCS_AGENTS_NODE_MODULES` name its interpreter and its Node modules.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import uvicorn

from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine_client.calls import GenerationAnswer
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import api
from tests.fakes import FAKE_INFO
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).with_name("agents")
PYTHON, MODULES = os.environ.get("OCS_AGENTS_PYTHON"), os.environ.get("OCS_AGENTS_NODE_MODULES")
ANSWER = "It is sunny in Rome at half past noon."


def call(name: str, **arguments: object) -> str:
    return "<|tool_call|>" + json.dumps({"name": name, "arguments": arguments})


class Agent(FakeEngine):
    """Engine that calls both tools at once, and answers when the prompt has both results."""

    def __init__(self) -> None:
        super().__init__(msgspec.structs.replace(FAKE_INFO, context_trained=2**17, kv_tokens=2**17))

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        (request,) = requests
        prompt = FakeTokenizer().decode(list(request.tokens), special=True)
        self.text = self._next(prompt)
        return super().generate(requests)

    def _next(self, prompt: str) -> str:
        is_done = "sunny" in prompt and "half past noon" in prompt
        if "<code>" in prompt:  # smolagents' CodeAgent
            code = f'final_answer("{ANSWER}")' if is_done else 'print(weather(city="Rome"), now())'
            return f"Thought: I look.\n<code>\n{code}\n</code>"
        if is_done:
            return call("final_answer", answer=ANSWER) if "final_answer" in prompt else ANSWER
        return call("weather", city="Rome") + '\n{"name":"now","arguments":{}}'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(lambda: api(Agent()), factory=True, log_level="error"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(DEADLINE_S)


def check_loop(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert sorted(outcome["calls"]) == ["now", "weather Rome"]
    assert outcome["answer"].strip() == ANSWER


MODES = pytest.mark.parametrize("mode", ["whole", "streamed"])


@MODES
@pytest.mark.parametrize("framework", ["anthropic", "smolagents-tools", "smolagents-code", "crewai"])
def test_an_agent_in_python(url: str, framework: str, mode: str) -> None:
    if PYTHON is None:
        pytest.skip("OCS_AGENTS_PYTHON names no interpreter with the frameworks")
    check_loop(PYTHON, str(FOLDER / "loops.py"), framework, url, mode)


@MODES
@pytest.mark.parametrize("framework", ["anthropic", "vercel"])
def test_an_agent_in_javascript(url: str, framework: str, mode: str) -> None:
    node = shutil.which("node")
    if MODULES is None or node is None:
        pytest.skip("OCS_AGENTS_NODE_MODULES names no folder with the frameworks")
    check_loop(node, str(FOLDER / "loops.mjs"), framework, url, mode)
