"""Adapters at the real server with the tiny model: together and alone, over a crash, replaced under load."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.adapters import make_adapter
from tests.e2e.serving import sdk, tiny_server
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

NAMES = ("tiny", "tiny:one", "tiny:two")
PROMPT = "The brown fox"
"""In 80 tokens no two best are nearer to each other than 0.01, with any of the adapters: steps of other sizes
round differently."""


class Served:
    def __init__(self, process: ServerProcess, client: openai.OpenAI, folder: Path) -> None:
        self.process = process
        self.client = client
        self.folder = folder

    def text(self, model: str, max_tokens: int = 40, **fields: Any) -> str:
        answer = self.client.completions.create(
            model=model,
            prompt=PROMPT,
            max_tokens=max_tokens,
            temperature=0,
            extra_body={"ignore_eos": True} | fields,
        )
        assert answer.choices[0].finish_reason == "length"
        return str(answer.choices[0].text)

    def load(self, name: str, path: str) -> httpx.Response:
        return httpx.post(
            f"{self.process.url}/v1/adapters", json={"name": name, "path": path}, timeout=DEADLINE_S
        )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "adapters"
    folder.mkdir()
    paths = [make_adapter(folder / f"{seed}.gguf", "--seed", str(seed)) for seed in range(3)]
    options = ("--adapter", f"one={paths[0]}", "--adapter", f"tiny/two={paths[1]}@0.8")
    with (
        tiny_server("--threads", "1", *options, "--adapter-dir", str(folder)) as process,
        sdk(process, timeout=DEADLINE_S) as client,
    ):
        yield Served(process, client, folder)


def test_together_they_answer_as_alone_and_a_killed_engine_is_only_a_pause(served: Served) -> None:
    alone = {name: served.text(name, 80) for name in NAMES}
    assert len(set(alone.values())) == 3
    with ThreadPoolExecutor(9) as pool:
        futures = [(name, pool.submit(served.text, name, 80)) for name in NAMES * 3]
        while served.process.status()["queue"]["interactive"]["running"] < 3:
            pass
        os.kill(served.process.engine.pid, signal.SIGKILL)
    assert all(future.result() == alone[name] for name, future in futures)
    assert served.process.status()["restarts"] == 1
    listed = {card.id: card.model_dump()["parent"] for card in served.client.models.list()}
    assert listed == {"tiny": None, "tiny:one": "tiny", "tiny:two": "tiny"}


def test_hot_swap_under_load_loses_nobody(served: Served) -> None:
    old = served.text("tiny:one")
    assert served.load("new", "2.gguf").status_code == 200
    new = served.text("tiny:new")
    assert served.load("one", "nothing.gguf").status_code == 400
    done = threading.Event()

    def ask_on(name: str) -> list[str]:
        answers = []
        while not done.is_set():
            answers.append(served.text(name))
        return answers

    with ThreadPoolExecutor(5) as pool:
        asking = [pool.submit(ask_on, "tiny:one") for _ in range(4)]
        beside = pool.submit(ask_on, "tiny")
        for path in ("2.gguf", "0.gguf", "2.gguf"):
            assert served.load("one", path).status_code == 200
        done.set()
    answers = {answer for future in asking for answer in future.result()}
    assert answers <= {old, new}
    assert set(beside.result()) == {served.text("tiny")}
    assert served.text("tiny:one") == new


def test_one_that_is_no_adapter_harms_nobody(served: Served) -> None:
    before = served.text("tiny:one")
    shutil.copy(tiny_model_path(), served.folder / "model.gguf")
    refused = served.load("one", "model.gguf")
    assert refused.status_code == 400
    assert "is no adapter" in refused.json()["error"]["message"]
    assert served.text("tiny:one") == before
    assert served.process.status()["restarts"] == 0
