"""Several models in one real server: loaded on demand, unloaded, killed, replaced."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving import num_live
from tests.gates import suspended
from tests.server_process import ServerProcess, engines_of
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

TINY = tiny_model_path()
DEMO = Path(__file__).parents[2] / "model_assets" / "demo.gguf"
TWO = ("--model", f"one={TINY}", "--model", f"two={TINY}", "--ctx-size", "1024", "--cache-mb", "8")
OWN_FILES = ("one.gguf", "two.gguf")
QUESTION: dict[str, object] = {"prompt": "x", "max_tokens": 20, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a file of its own for each model of `server`."""
    folder = tmp_path_factory.mktemp("models")
    for name in OWN_FILES:
        shutil.copy(TINY, folder / name)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    models = [f"--model={name.removesuffix('.gguf')}={folder / name}" for name in OWN_FILES]
    steady = ("--kernels", "invariant")  # answers are compared after a kill
    with ServerProcess(*models, "--ctx-size", "1024", "--cache-mb", "8", *steady) as server:
        yield server


def replace(path: Path, content: Path | str) -> None:
    """Replace a file in one step, by a copy of another or by this text."""
    new = path.with_suffix(".new")
    if isinstance(content, Path):
        shutil.copy(content, new)
    else:
        new.write_text(content)
    new.replace(path)


def card(server: ServerProcess, name: str) -> dict[str, Any]:
    return server.get(f"/v1/models/{name}").json()


def state(server: ServerProcess, name: str) -> str:
    return str(card(server, name)["state"])


def answer(server: ServerProcess, model: str, **fields: object) -> str:
    body = {**QUESTION, "model": model, **fields}
    reply = server.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def num_engines(server: ServerProcess) -> int:
    return len(engines_of(server.process.pid))


def test_a_request_loads_a_model_and_idleness_unloads_it() -> None:
    with ServerProcess(*TWO, "--idle-unload", "2") as server:
        assert state(server, "two") == "asleep"
        assert card(server, "two")["meta"]["context_length"] == 1024
        body = {**QUESTION, "model": "two", "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=DEADLINE_S) as stream:
            lines = list(stream.iter_lines())
        assert lines[0] == ": model is loading (0 %)"
        assert "data: [DONE]" in lines
        assert answer(server, "one") == answer(server, "two")
        wait_until(lambda: num_engines(server) == 0)
        assert server.get("/ready").status_code == 200
        assert answer(server, "one") == answer(server, "two")


def test_killing_one_engine_pauses_only_its_own_streams(server: ServerProcess) -> None:
    answer(server, "two")
    first, second = engines_of(server.process.pid)
    with ThreadPoolExecutor() as pool:
        with suspended(first.pid):
            answers = [pool.submit(answer, server, name, max_tokens=200) for name in ("one", "two")]
            wait_until(lambda: num_live(server) > 0)
            first.kill()
        texts = [future.result() for future in answers]
    assert texts[0] == texts[1]
    assert second.is_running()
    assert server.status()["restarts"] == 1


def test_the_budget_has_room_for_one_at_a_time(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[models.large]\nsource = "{TINY}"\nctx_size = 1000000\n')
    with ServerProcess(*TWO, "--memory", "250", "--config", str(config)) as server:
        alone = answer(server, "one")
        for name in ("two", "one"):
            assert answer(server, name) == alone
            assert num_engines(server) == 1
        refused = server.post("/v1/completions", json={**QUESTION, "model": "large"})
        assert refused.status_code == 503
        assert "the model 'large' needs" in refused.text
        assert card(server, "large")["state"] == "failed"
        error = server.post("/v1/models/large/load").json()["error"]
        assert error["code"] == "model_does_not_fit"


def test_a_file_that_changed_takes_over_without_a_lost_request(server: ServerProcess, folder: Path) -> None:
    server.post("/v1/models/two/unload")
    expected, texts, is_over = answer(server, "one"), list[str](), threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            texts.append(answer(server, "one"))

    with ThreadPoolExecutor() as pool:
        clients = [pool.submit(ask) for _ in range(2)]
        replace(folder / "one.gguf", TINY)
        assert server.post("/v1/models/one/load").json()["state"] == "ready"
        enough = len(texts) + 4
        wait_until(lambda: len(texts) >= enough)
        is_over.set()
    assert [client.exception() for client in clients] == [None, None]
    assert set(texts) == {expected}
    assert "was reloaded" in "".join(server.lines)
    wait_until(lambda: num_engines(server) == 1)


def test_a_sleeping_model_follows_changes_of_its_file(server: ServerProcess, folder: Path) -> None:
    """The new file has other tokens, and a request must not be split into those of the old one."""
    server.post("/v1/models/two/unload")
    tokens = {"model": "two", "prompt": "seven stones"}
    before = server.post("/tokenize", json=tokens).json()["tokens"]
    replace(folder / "two.gguf", "no model")
    server.wait_for("(has changed, and cannot be read)")
    assert server.post("/tokenize", json=tokens).json()["tokens"] == before
    replace(folder / "two.gguf", DEMO)
    server.wait_for("(has changed, and was read again)")
    assert server.post("/tokenize", json=tokens).json()["tokens"] != before
    assert state(server, "two") == "asleep"
    assert answer(server, "two")
