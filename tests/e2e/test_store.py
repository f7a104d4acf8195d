"""Models that are pulled, named and deleted on a running server, by its own routes and by Ollama's client.
The hub is on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.hub_stand_in import Hub, Repo, running
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.thorough

HI = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4, "temperature": 0}


class Home:
    """Folder in which a server stores its models between two starts."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.cache = folder / "hf" / "hub"
        self.env = hub.environment(folder / "hf", XDG_DATA_HOME=str(folder))

    def server(self) -> ServerProcess:
        return ServerProcess("--model", f"first={tiny_model_path()}", "--allow-pull", env=self.env)

    @property
    def repos(self) -> set[str]:
        return {path.name for path in self.cache.glob("models--*")}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    tiny = tiny_model_path().read_bytes()
    repos = {
        "acme/tiny": Repo({"tiny-Q4_0.gguf": tiny}),
        "acme/large": Repo({"tiny.gguf": tiny_model_path("f32").read_bytes()}),
        "acme/torn": Repo({"torn.gguf": tiny[:5000]}),
    }
    with running(repos) as hub:
        yield hub


@pytest.fixture(scope="module")
def home(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("store"), hub)


@pytest.fixture(scope="module")
def store(home: Home) -> Iterator[ServerProcess]:
    """Server that pulls and deletes models. Each test deletes what it pulls."""
    with home.server() as server:
        yield server


@pytest.fixture(scope="module")
def client(store: ServerProcess) -> Iterator[Any]:
    with pytest.importorskip("ollama").Client(host=store.url) as client:
        yield client


def names(server: ServerProcess) -> list[str]:
    return [card["id"] for card in server.get("/v1/models").json()["data"]]


def pull(server: ServerProcess, model: str) -> list[dict[str, Any]]:
    body = {"model": model, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/models/pull", json=body, timeout=DEADLINE_S) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_pulled_model_is_served_at_once_and_can_be_deleted(tmp_path: Path, hub: Hub) -> None:
    home = Home(tmp_path, hub)
    with home.server() as server:
        events = pull(server, "hf:acme/tiny")
        statuses = [*dict.fromkeys(event["status"] for event in events)]
        assert statuses == ["asking", "asked", "pulling", "verifying", "success"]
        assert events[-1]["name"] == "hf:acme/tiny/tiny-Q4_0.gguf"
        assert names(server) == ["first", "hf:acme/tiny"]
        body = {**HI, "model": "hf:acme/tiny"}
        assert server.post("/v1/chat/completions", json=body).status_code == 200
        for name, message in (
            ("hf:acme/nothing", "The repository acme/nothing does not exist on "),
            ("/etc/passwd", "The model '/etc/passwd' is unknown: use hf:OWNER/REPO"),
        ):
            error = pull(server, name)[-1]["error"]
            assert (error["message"].startswith(message), error["code"]) == (True, "pull_failed")
        torn = server.post("/v1/models/pull", json={"model": "hf:acme/torn"})
        assert torn.status_code == 503
        assert "torn.gguf" in torn.json()["error"]["message"]
    hub.requests.clear()
    with home.server() as server:
        assert names(server) == ["first", "hf:acme/tiny"]
        assert hub.requests == []
        deleted = server.delete("/v1/models/hf:acme/tiny")
        assert deleted.json() == {"id": "hf:acme/tiny", "deleted": True, "object": "model"}
        assert names(server) == ["first"]
        assert "models--acme--tiny" not in home.repos
        assert server.delete("/v1/models/first").status_code == 400


def test_a_second_client_joins_a_pull_that_ends_with_its_last_client(store: ServerProcess, hub: Hub) -> None:
    with httpx.Client(base_url=store.url, timeout=DEADLINE_S) as http:

        def pulling(model: str) -> Any:
            return http.stream("POST", "/v1/models/pull", json={"model": model, "stream": True})

        hub.requests.clear()
        hub.stall_after = 200_000
        with pulling("hf:acme/large") as first, pulling("hf:acme/large") as second:
            first_lines, lines = first.iter_lines(), second.iter_lines()  # unnamed ones would be closed
            next(first_lines)
            assert hub.stalled.wait(DEADLINE_S)
            next(lines)
            first.close()
            hub.released.set()
            last = [line for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["status"] == "success"
        assert names(store) == ["first", "hf:acme/large"]
        assert hub.downloads() == ["tiny.gguf"] * 2  # the connection broke once

        hub.stall_after = 1000
        hub.stalled.clear()
        hub.released.clear()
        with pulling("hf:acme/tiny"):
            assert hub.stalled.wait(DEADLINE_S)
            children = psutil.Process(store.process.pid).children()
            (child,) = (child for child in children if "pull" in child.cmdline())
        child.wait(timeout=DEADLINE_S)
        assert names(store) == ["first", "hf:acme/large"]
    assert store.delete("/v1/models/hf:acme/large").json()["deleted"]


def test_models_cannot_be_changed_without_the_option(server: ServerProcess) -> None:
    refused = server.post("/v1/models/pull", json={"model": "hf:acme/tiny"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].endswith("start it with --allow-pull.")
    assert server.delete("/v1/models/tiny").status_code == 400


SYSTEM = "You are a pirate."
QUESTION = [{"role": "user", "content": "Hi."}]


def test_ollamas_pull_reports_progress_and_delete_removes_the_model(
    store: ServerProcess, client: Any, home: Home
) -> None:
    steps = list(client.pull("hf:acme/tiny", stream=True))
    statuses = [step.status for step in steps]
    assert statuses[0] == "pulling manifest"
    assert statuses[-2:] == ["verifying sha256 digest", "success"]
    pulling = next(step for step in reversed(steps) if step.digest)
    assert pulling.status == f"pulling {pulling.digest.removeprefix('sha256:')[:12]}"
    assert pulling.completed == pulling.total == len(tiny_model_path().read_bytes())
    assert client.pull("hub.example/acme/tiny:Q4_0").status == "success"
    assert [model.model for model in client.list().models][-2:] == [
        "hf:acme/tiny",
        "hub.example/acme/tiny:Q4_0",
    ]
    assert client.chat("hf:acme/tiny", QUESTION, options={"num_predict": 2}).message.content is not None
    for name, repos in (("hf:acme/tiny", {"models--acme--tiny"}), ("hub.example/acme/tiny:Q4_0", set())):
        assert client.delete(name).status == "success"
        assert home.repos == repos
    assert names(store) == ["first"]


def test_unsupported_calls_of_ollamas_client_get_a_reason(client: Any) -> None:
    cases: list[tuple[Any, int, str]] = [
        (lambda: client.pull("hf:acme/none"), 400, "The repository acme/none does not exist on "),
        (lambda: client.pull("no-such-model"), 400, "The model 'no-such-model' is unknown"),
        (lambda: client.delete("other"), 404, "The model 'other' does not exist"),
        (lambda: client.delete("first"), 400, "'first' was not pulled, so it cannot be removed."),
        (lambda: client.copy("other", "more"), 404, "The model 'other' does not exist"),
        (lambda: client.copy("first", "first"), 400, "'first' is a model's own name."),
        (lambda: client.create("a", from_="first", quantize="q4_0"), 400, "quantize"),
        (lambda: client.create("a", from_="first", files={"a": "b"}), 400, "this server takes no files"),
        (lambda: client.create("a", from_="first", adapters={"a": "b"}), 400, "POST /v1/adapters"),
        (lambda: client.create("a", from_="first", template="{{ .Prompt"), 400, "not closed"),
        (lambda: client.create("a"), 400, "from"),
        (lambda: client.create_blob(__file__), 400, "This server takes no files"),
        (lambda: client.push("first"), 400, "This server does not upload models."),
    ]
    import ollama

    for call, status, reason in cases:
        with pytest.raises(ollama.ResponseError, match=f"(?s){reason}") as raised:
            call()
        assert raised.value.status_code == status


def test_a_derived_model_adds_its_system_prompt_and_messages(store: ServerProcess, client: Any) -> None:
    greedy = {"temperature": 0.0, "num_predict": 6}
    before = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]
    definition: Any = {"system": SYSTEM, "messages": before, "parameters": {**greedy, "stop": ["STOP"]}}
    steps = client.create("pirate", from_="first", stream=True, **definition)
    assert [step.status for step in steps] == ["success"]
    client.copy("pirate", "corsair")
    system = {"role": "system", "content": SYSTEM}
    expected = client.chat("first", [system, *before, *QUESTION], options=greedy)
    for name in ("pirate", "pirate:latest", "corsair"):
        answer = client.chat(name, QUESTION)
        assert answer.message.content == expected.message.content
        assert answer.prompt_eval_count == expected.prompt_eval_count
        assert answer.eval_count == expected.eval_count
    generated = client.generate("pirate", "Hi.")
    assert (generated.response, generated.eval_count) == (expected.message.content, expected.eval_count)
    own = [{"role": "system", "content": "Be."}, *QUESTION]
    assert client.chat("pirate", own, options={"num_predict": 2}).eval_count == 2
    details = client.show("pirate")
    assert details.modelfile.startswith("FROM first\nPARAMETER temperature 0\n")
    assert "stop" in details.parameters
    assert {"pirate", "corsair"} <= {*names(store)}
    body = {"model": "pirate", "max_tokens": 6, "messages": QUESTION}
    message = store.post("/v1/messages", json=body).json()
    assert message["content"][0]["text"] == expected.message.content
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected.prompt_eval_count


def test_created_names_survive_a_restart(client: Any, home: Home) -> None:
    client.create("kept", from_="first", system=SYSTEM)
    with home.server() as again:
        assert "kept" in names(again)
        file = home.cache.parents[1] / "openai-cpu-server" / "models.json"
        assert file.stat().st_mode & 0o777 == 0o600
    client.delete("kept")
    assert "kept" not in [model.model for model in client.list().models]
