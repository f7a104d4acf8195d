"""A server process whose model says what it is told: `python -m tests.scripted_server SCRIPT.json`.

The script is a list of outputs of ASCII, one for each request in turn; the last one is said for ever. An
output that its request's constraint forbids fails that request. Each prompt is a line of `SCRIPT.json.log`.
The port is the first line that the process prints.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvicorn

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine_client.answers import GenerationAnswer
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.following import Follower
from tests.fakes import FAKE_INFO
from tests.reading import model_read_here

MODEL = "scripted"
_ROOM = 1 << 20


class ScriptedEngine(FakeEngine):
    def __init__(self, script: Path, follower: Follower) -> None:
        super().__init__(msgspec.structs.replace(FAKE_INFO, context_trained=_ROOM, kv_tokens=_ROOM))
        self._outputs = json.loads(script.read_text())
        self._log = script.with_name(script.name + ".log")
        self._follower = follower

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        (request,) = requests
        self.says = self._outputs.pop(0) if len(self._outputs) > 1 else self._outputs[0]
        prompt = self._follower.tokenizer.decode(list(request.tokens), special=True)
        fits = request.constraint is None or self._follower.accepts(request.constraint, self.says)
        with self._log.open("a") as log:
            log.write(json.dumps({"prompt": prompt, "says": self.says, "fits": fits}) + "\n")
        assert fits, "the constraint forbids this output"
        return super().generate(requests)

    async def _compute(self, request: GenerationRequest, generation: GenerationAnswer) -> None:
        says = self.says
        await super()._compute(request, generation)
        assert says == self.says, "requests overlap: their outputs would be one another's"


async def serve(script: Path) -> None:
    follower = Follower()
    model = model_read_here(
        names=(MODEL,),
        engine=ScriptedEngine(script, follower),
        tokenizer=follower.tokenizer,
        template=ChatTemplate(FakeTokenizer.chat_template, bos_text="<s>", eos_text="</s>"),
        tool_format=TOOL_FORMATS["generic"],
    )
    jobs = Jobs(open_database("sqlite://"), JobOptions(model=MODEL))
    api = create_api(ModelRegistry([model]), ApiOptions(), jobs=jobs)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        await uvicorn.Server(uvicorn.Config(api.app, log_level="error")).serve([listener])


@contextmanager
def scripted_server(script: Path, outputs: Sequence[str]) -> Iterator[str]:
    """Its URL. `script`: where the outputs are written."""
    script.write_text(json.dumps(outputs))
    command = [sys.executable, "-m", "tests.scripted_server", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def heard(script: Path) -> list[str]:
    """The prompts of all requests so far. None had an output that its constraint forbids."""
    lines = [json.loads(line) for line in script.with_name(script.name + ".log").read_text().splitlines()]
    assert all(line["fits"] for line in lines)
    return [line["prompt"] for line in lines]


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
