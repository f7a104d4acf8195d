"""What the manual tells those who come from Ollama is done line by line. The hub is on loopback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from openai_cpu_server.model_source.aliases import KNOWN_MODELS
from openai_cpu_server.model_source.names import parse_hub_name
from tests.docs.markdown import DOCS, ROOT, blocks
from tests.hub_stand_in import Repo, running
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.thorough
PAGE = DOCS / "ollama.md"
SCRIPT = ROOT / "scripts" / "switch_from_ollama"
_KNOWN = ("smollm2-135m", "llama-3.2-3b")


class _Place(NamedTuple):
    server: ServerProcess
    env: dict[str, str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Place]:
    """With the options of the page's first lines; the files of all names are tiny."""
    folder, tiny = tmp_path_factory.mktemp("ollama"), tiny_model_path().read_bytes()
    repos = {"acme/tiny": Repo({"tiny-Q4_0.gguf": tiny})}
    for name in _KNOWN:
        known = parse_hub_name(KNOWN_MODELS[name].source or "")
        repos[known.repo] = Repo({str(known.file): tiny})
    with running(repos) as hub:
        env = hub.environment(folder, XDG_DATA_HOME=str(folder))
        with ServerProcess("--model", f"first={tiny_model_path()}", "--allow-pull", env=env) as server:
            yield _Place(server, env)


def steps(transcript: str) -> list[tuple[str, str, set[str]]]:
    """The command of Ollama's, the request, and the names in the answer."""
    found = re.findall(r"^# (.*)\n\$ (.*)\n((?:(?!# ).*\n?)*)", transcript, re.MULTILINE)
    return [(command, request, {*re.findall(r'"(\w+)":', answer)}) for command, request, answer in found]


def rows() -> dict[str, str]:
    section = PAGE.read_text("utf-8").split("## Commands")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(.*?)`.* \| (.*) \|$", section, re.MULTILINE))


def test_the_transcript_is_what_the_script_does(place: _Place) -> None:
    done = subprocess.run([SCRIPT, place.server.url], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = next(block for block in blocks(PAGE, "console") if SCRIPT.name in block)
    done_steps, told_steps = steps(done.stdout), steps(told)
    assert [step[:2] for step in told_steps] == [step[:2] for step in done_steps]
    for (command, _, names), (_, _, there) in zip(told_steps, done_steps, strict=True):
        assert names <= there, command
    verbs = {command.split()[1] for command, _, _ in done_steps if command.startswith("ollama ")}
    asked = {command.split()[1] for command in rows() if command.startswith("ollama ")}
    assert asked - verbs == {"serve"}


def test_options_in_place_of_ollamas_variables_are_taken(place: _Place) -> None:
    """The server starts with all of them at once."""
    table = {name: told for name, told in rows().items() if name.startswith("OLLAMA_")}
    options = [re.findall(r"`(--[a-z-]+) ([^`]+)`", told)[0] for told in table.values()]
    assert len(options) == len(table) == 5
    values = [part.replace("MiB", "4000") for pair in options for part in pair]
    with ServerProcess("--model", f"first={tiny_model_path()}", *values, env=place.env) as server:
        assert "8192 KV tokens (q8_0" in "".join(server.lines)
        assert "4 sequences at once" in "".join(server.lines)
