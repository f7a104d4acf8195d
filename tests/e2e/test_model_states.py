"""Rows of `tests/api/test_model_states.py` in each state of a real engine (finding D4)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.api.test_model_states import CARDS, COMPUTED, FACTS, LOADS, READ, STREAMS
from tests.e2e.serving import num_live
from tests.gates import suspended
from tests.server_process import ServerProcess, engines_of
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

COMPUTING = (
    *("POST /v1/chat/completions", "POST /v1/responses", "POST /v1/messages", "POST /completion"),
    *("POST /api/chat", "POST /v1/chat/completions as a stream", "POST /v1/messages as a stream"),
)
READING = ("POST /tokenize", "POST /v1/chat/completions/input_tokens", "POST /api/show", "GET /props")
BODIES = {**COMPUTED, **STREAMS, **LOADS, **READ, **FACTS, **CARDS}
DEFAULT = f"first={tiny_model_path()}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "other"):
        shutil.copy(tiny_model_path(), tmp_path / f"{name}.gguf")
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "half.gguf").write_bytes(tiny_model_path().read_bytes()[:1_000_000])
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))  # a file that has just been written is not served yet
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[ServerProcess]:
    options = ("--model", DEFAULT, "--models-dir", str(folder), "--ctx-size", "1024", "--cache-mb", "8")
    with ServerProcess(*options) as server:
        yield server


def send(server: ServerProcess, route: str, model: str) -> httpx.Response:
    method, path, *_ = route.replace("{id}", model).split()
    body = {**BODIES[route], "model": model}
    if method == "GET":
        return server.get(path, params={} if "{id}" in route else {"model": model})
    return server.post(path, json={} if "{id}" in route else body)


def state(server: ServerProcess) -> str:
    return str(server.get("/v1/models/one").json()["state"])


def new_engine(server: ServerProcess, before: list[psutil.Process]) -> psutil.Process:
    wait_until(lambda: {*engines_of(server.process.pid)} - {*before} != set())
    (engine,) = {*engines_of(server.process.pid)} - {*before}
    return engine


def check_waiting(server: ServerProcess, engine: psutil.Process, expected: str) -> None:
    """While the engine is suspended, requests to compute wait, and requests to read are answered."""
    with ThreadPoolExecutor(len(COMPUTING)) as pool:
        with suspended(engine.pid):
            assert state(server) == expected
            tasks = [pool.submit(send, server, route, "one") for route in COMPUTING]
            wait_until(lambda: num_live(server) == len(COMPUTING))
            assert [send(server, route, "one").status_code for route in READING] == [200] * len(READING)
            assert not any(task.done() for task in tasks)
        assert [task.result().status_code for task in tasks] == [200] * len(COMPUTING)
    assert state(server) == "ready"


def test_a_sleeping_model_wakes_and_a_loading_one_is_waited_for(server: ServerProcess) -> None:
    assert [send(server, route, "one").status_code for route in READING] == [200] * len(READING)
    assert state(server) == "asleep"
    for route in LOADS:
        assert send(server, route, "one").status_code == 200
        assert state(server) == "ready"
        assert server.post("/v1/models/one/unload").json()["state"] == "asleep"
    before = engines_of(server.process.pid)
    assert server.post("/v1/models/one/load?wait=perhaps").status_code == 400
    assert server.post("/v1/models/one/load?wait=false").status_code == 202
    check_waiting(server, new_engine(server, before), "loading")


@pytest.mark.slow
def test_a_restarting_engine_is_waited_for(server: ServerProcess) -> None:
    before = engines_of(server.process.pid)
    assert send(server, "POST /v1/models/{id}/load", "one").status_code == 200
    old = new_engine(server, before)
    old.kill()
    check_waiting(server, new_engine(server, [*before, old]), "restarting")


def test_files_that_cannot_be_read_or_are_removed_are_named(server: ServerProcess, folder: Path) -> None:
    routes = (*COMPUTING, *LOADS, *READING)
    for model, reason in {"text": "is not a GGUF file", "half": "is truncated or damaged"}.items():
        for route in routes:
            answer = send(server, route, model)
            assert (answer.status_code, answer.headers.get("x-should-retry")) == (503, "false"), route
            assert reason in answer.text
        card = send(server, "GET /v1/models/{id}", model).json()
        assert (card["state"], reason in card["reason"]) == ("failed", True)
    assert send(server, COMPUTING[0], "other").status_code == 200
    (folder / "other.gguf").unlink()
    assert "other" not in server.get("/v1/models").text
    for route in (*routes, *CARDS):
        assert send(server, route, "other").status_code == 404, route
    assert send(server, COMPUTING[0], "first").status_code == 200
