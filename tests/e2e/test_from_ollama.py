"""The manual's page for users of Ollama, carried out line by line. The hub is on loopback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from openai_cpu_server.model_source.aliases import MODELS_BY_ALIAS
from openai_cpu_server.model_source.names import parse_hub_name
from tests.docs.markdown import DOCS, ROOT, blocks
from tests.hub_stand_in import Repo, running
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.thorough
PAGE = DOCS / "ollama.md"
SCRIPT = ROOT / "scripts" / "switch_from_ollama"
_ALIASES = ("smollm2-135m", "llama-3.2-3b")


class _Installation(NamedTuple):
    server: ServerProcess
    env: dict[str, str]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Installation]:
    """Server with the options of the page's first lines. The hub has the tiny model under all names."""
    folder, tiny = tmp_path_factory.mktemp("ollama"), tiny_model_path().read_bytes()
    repos = {"acme/tiny": Repo({"tiny-Q4_0.gguf": tiny})}
    for name in _ALIASES:
        source = parse_hub_name(MODELS_BY_ALIAS[name].source or "")
        repos[source.repo] = Repo({str(source.file): tiny})
    with running(repos) as hub:
        env = hub.environment(folder, XDG_DATA_HOME=str(folder))
        with ServerProcess("--model", f"first={tiny_model_path()}", "--allow-pull", env=env) as server:
            yield _Installation(server, env)


def steps(transcript: str) -> list[tuple[str, str, set[str]]]:
    """Return Ollama's command, the request and the field names of the answer for each step."""
    matches = re.findall(r"^# (.*)\n\$ (.*)\n((?:(?!# ).*\n?)*)", transcript, re.MULTILINE)
    return [(command, request, {*re.findall(r'"(\w+)":', answer)}) for command, request, answer in matches]


def rows() -> dict[str, str]:
    section = PAGE.read_text("utf-8").split("## Commands")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(.*?)`.* \| (.*) \|$", section, re.MULTILINE))


def test_the_transcript_is_what_the_script_does(installation: _Installation) -> None:
    done = subprocess.run([SCRIPT, installation.server.url], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    transcript = next(block for block in blocks(PAGE, "console") if SCRIPT.name in block)
    actual_steps, documented_steps = steps(done.stdout), steps(transcript)
    assert [step[:2] for step in documented_steps] == [step[:2] for step in actual_steps]
    for (command, _, names), (_, _, actual_names) in zip(documented_steps, actual_steps, strict=True):
        assert names <= actual_names, command
    verbs = {command.split()[1] for command, _, _ in actual_steps if command.startswith("ollama ")}
    documented_commands = {command.split()[1] for command in rows() if command.startswith("ollama ")}
    assert documented_commands - verbs == {"serve"}


def test_options_in_place_of_ollamas_variables_are_accepted(installation: _Installation) -> None:
    """The server starts with all of them at once."""
    table = {name: text for name, text in rows().items() if name.startswith("OLLAMA_")}
    options = [re.findall(r"`(--[a-z-]+) ([^`]+)`", text)[0] for text in table.values()]
    assert len(options) == len(table) == 5
    values = [part.replace("MiB", "4000") for pair in options for part in pair]
    with ServerProcess("--model", f"first={tiny_model_path()}", *values, env=installation.env) as server:
        assert "8192 KV tokens (q8_0" in "".join(server.lines)
        assert "4 sequences at once" in "".join(server.lines)
