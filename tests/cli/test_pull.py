"""`pull`, `list` and `rm` as a user types them, against a hub on loopback."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.model_source.aliases import MODELS_BY_ALIAS, without_tag
from openai_cpu_server.model_source.names import parse_hub_name
from openai_cpu_server.model_source.package import PACKAGED
from tests import warm
from tests.hub_stand_in import Hub, Repo, running
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path, tiny_projector_path
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.thorough

LARGE = bytes(range(256)) * 100_000
ALIAS = "qwen3.5-0.8b"
_MB = 10**6


class Home:
    """A user's cache of the hub, and the commands that work on it."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.hub, self.cache, self.env = hub, folder / "hub", hub.environment(folder)

    def output(self, *arguments: str, code: int = 0) -> str:
        """Run a command and return its standard output, or its messages if that is empty."""
        done = warm.run(*arguments, env=self.env)
        assert done.returncode == code, done.stderr
        return done.stdout or done.stderr

    def here(self) -> set[str]:
        return {each["name"] for each in json.loads(self.output("list", "--json"))} - set(PACKAGED)

    def partial(self, repo: str) -> Path:
        (found,) = (self.cache / f"models--{repo.replace('/', '--')}" / "blobs").glob("*.partial")
        return found


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    model = parse_hub_name(MODELS_BY_ALIAS[ALIAS].source or "")
    tiny = tiny_model_path().read_bytes()
    projector = tiny_projector_path("gemma3", rows_width=256).read_bytes()
    repos = {
        model.repo: Repo({model.file or "": tiny}),
        "acme/large": Repo({"model.gguf": LARGE}),
        "acme/sees": Repo({"m-Q4_0.gguf": tiny, "m-Q8_0.gguf": tiny + b"\0", "mmproj-F16.gguf": projector}),
        "acme/wrong": Repo({"model.gguf": tiny}, etag=hashlib.sha256(b"another").hexdigest()),
        "acme/huge": Repo({"model.gguf": b"small in truth"}, claimed_size=10**18),
        "acme/gated": Repo({"model.gguf": b"gated"}, gated=True),
    }
    with running(repos) as hub:
        yield hub


@pytest.fixture
def home(hub: Hub, tmp_path: Path) -> Home:
    hub.requests.clear()
    return Home(tmp_path / "hf", hub)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3.5:0.8b", ALIAS),
        ("qwen3.5-0.8b:latest", ALIAS),
        ("llama3.2:3b", "llama-3.2-3b"),
        ("gpt-oss:20b", "gpt-oss-20b"),
        ("hf:acme/some:Q4_K_M", "hf:acme/some:Q4_K_M"),
        ("nothing:3b", "nothing:3b"),
        ("dir/file.gguf", "dir/file.gguf"),
    ],
)
def test_tags_of_ollama_name_the_same_models(name: str, expected: str) -> None:
    assert without_tag(name) == expected


def test_a_model_is_pulled_listed_and_removed(home: Home, hub: Hub) -> None:
    output = home.output("pull", "qwen3.5:0.8b")
    source = MODELS_BY_ALIAS[ALIAS].source or ""
    file = source.rpartition("/")[2]
    assert output.startswith(f"pulling {source}: ")
    assert "it fits into memory: " in output
    assert f"{file}: 100 % of" in output
    assert f"{source} is on this machine: {home.cache}" in output
    assert home.here() == {ALIAS}
    hub.requests.clear()
    home.output("pull", ALIAS)
    assert hub.downloads() == []
    assert home.output("rm", ALIAS).startswith(f"removed {source}: ")
    assert home.here() == set()
    assert list(home.cache.glob("models--*")) == []
    assert home.output("rm", ALIAS, code=2) == (
        f"openai-cpu-server: {source} is not in the cache ({home.cache})\n"
    )


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_an_interrupted_pull_is_resumed(home: Home, hub: Hub, number: int) -> None:
    hub.stalled.clear()
    hub.released.clear()
    hub.stall_after = 22 * _MB
    process = warm.start("pull", "hf:acme/large", env=home.env)
    assert hub.stalled.wait(timeout=DEADLINE_S)
    process.send_signal(number)
    output = process.end()
    hub.released.set()
    if number == signal.SIGINT:
        assert output.endswith(
            "interrupted while fetching model.gguf of acme/large: the next attempt resumes it\n"
        )
    size = home.partial("acme/large").stat().st_size
    assert size == LARGE.startswith(home.partial("acme/large").read_bytes()) * size
    assert size > 10 * _MB
    lines = [json.loads(line) for line in home.output("pull", "--json", "hf:acme/large").splitlines()]
    first = next(line for line in lines if line["status"] == "pulling")
    digest = f"sha256:{hashlib.sha256(LARGE).hexdigest()}"
    expected = {"status": "pulling", "file": "model.gguf", "digest": digest, "total": len(LARGE)}
    assert first == {**expected, "completed": size}
    assert Path(lines[-1]["path"]).read_bytes() == LARGE
    assert hub.sent == len(LARGE) - size


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("hf:acme/huge", "not enough disk space for acme/huge: it needs 1000000000.00 GB, and "),
        ("hf:acme/gated", "acme/gated is gated: accept its terms"),
        ("hf:acme/wrong", "acme/wrong/model.gguf was received with another hash than the hub"),
        (f"hf:acme/large --keep-free {10**10}", "must stay free"),
        ("hf:acme/nothing", "the repository acme/nothing does not exist on"),
        ("demo", "demo is on this machine, and not from the hub: "),
        ("quen3.5:4b", "unknown model 'quen3.5:4b' (did you mean qwen3.5-4b"),
    ],
)
def test_a_refused_pull_reports_one_line(home: Home, name: str, line: str) -> None:
    lines = home.output("pull", "--json", *name.split(), code=2).splitlines()
    assert line in json.loads(lines[-1])["error"]
    assert home.here() == set()
    assert list(home.cache.glob("models--*/blobs/*")) == []


def test_a_projector_is_pulled_and_stays_while_another_model_needs_it(home: Home) -> None:
    output = home.output("pull", "hf:acme/sees:Q4_0", "hf:acme/sees:Q8_0")
    assert "with its projector mmproj-F16.gguf" in output
    folder = home.cache / "models--acme--sees"
    home.output("rm", "hf:acme/sees:Q4_0")
    assert {path.name for path in folder.glob("snapshots/*/*")} == {"m-Q8_0.gguf", "mmproj-F16.gguf"}
    assert len(list((folder / "blobs").iterdir())) == 2
    (model,) = folder.glob("snapshots/*/m-Q8_0.gguf")
    with ServerProcess("--model", str(model), "--mmproj", "off"):
        output = home.output("rm", "hf:acme/sees:Q8_0", code=2)
    assert output == "openai-cpu-server: a running server uses m-Q8_0.gguf\n"
    home.output("rm", "hf:acme/sees:Q8_0")
    assert not folder.exists()
