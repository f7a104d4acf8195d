"""The cache of answers on a real server with SmolLM2 and MiniLM, over restarts, and between two servers."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving import key_file
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

ONE = "How do I reset my password?"
PARAPHRASE = "How can I reset my password?"


@pytest.fixture(scope="module")
def server(smollm2: Path, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("answers")
    key_file(folder / "keys.toml", dict.fromkeys(("ann", "bob"), "admin = true"))
    (folder / "c.toml").write_text(
        f'answer_cache = "{folder / "answers.db"}"\nsemantic_cache = 0.95\nsemantic_cache_model = "minilm"\n'
        f'api_keys = "{folder / "keys.toml"}"\nctx_size = 2048\ncache_mb = 8\n'
    )
    models = ("--model", f"smollm2={smollm2}", "--model", f"minilm={minilm}")
    with ServerProcess("--config", str(folder / "c.toml"), *models) as process:
        assert process.post("/v1/models/minilm/load", headers={"x-api-key": "ann"}).status_code == 200
        yield process


def ask(server: ServerProcess, text: str, key: str = "ann") -> tuple[str, str]:
    """What the cache did, and the answer. A question that is embedded too late, on a machine that is busy
    elsewhere, is compared with none: it is asked again."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return answered(
        server, "/v1/chat/completions", {**body}, lambda choice: choice["message"]["content"], key
    )


def answered(
    server: ServerProcess, path: str, body: object, text: Callable[[Any], str], key: str = "ann"
) -> tuple[str, str]:
    """It is asked again where the store came late, on a machine that is busy elsewhere."""
    answers = list[httpx.Response]()

    def is_looked_up() -> bool:
        answers.append(server.post(path, json=body, headers={"x-api-key": key}))
        return answers[-1].headers["x-cache"] != "bypass"

    wait_until(is_looked_up)
    return answers[-1].headers["x-cache"], text(answers[-1].json()["choices"][0])


def kept(server: ServerProcess, at_least: int) -> None:
    """Answers are written while the server goes on."""
    url, headers = server.url + "/v1/cache/stats", {"x-api-key": "ann"}
    wait_until(lambda: httpx.get(url, headers=headers).json()["answers"]["entries"] >= at_least)


def test_a_paraphrase_is_answered_alike(server: ServerProcess) -> None:
    """Clients that name neither a seed nor a temperature are most of all. What is another question:
    tests/api/test_answer_cache.py."""
    said, answer = ask(server, ONE)
    assert said == "miss"
    ask(server, "Is it safe to eat raw eggs?")
    kept(server, 2)
    assert ask(server, PARAPHRASE) == ("semantic; similarity=0.99", answer)
    assert ask(server, "Is it not safe to eat raw eggs?")[0] == "miss"
    assert ask(server, PARAPHRASE, key="bob")[0] == "miss"


TINY_OPTIONS = ("--ctx-size", "512", "--cache-mb", "0")


def complete(server: ServerProcess) -> tuple[str, str]:
    body = {"prompt": "x", "max_tokens": 9, "seed": 3}
    return answered(server, "/v1/completions", body, lambda choice: choice["text"])


@pytest.mark.slow
def test_kill_9_forgets_nothing_and_another_file_answers_itself(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    shutil.copy(tiny_model_path(), model)
    options = ("--model", str(model), "--answer-cache", str(tmp_path / "a.db"), *TINY_OPTIONS)
    with ServerProcess(*options) as first:
        said, text = complete(first)
        kept(first, 1)
        first.stop(signal.SIGKILL)
    assert said == "miss"
    with ServerProcess(*options) as second:
        assert complete(second) == ("exact", text)
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes() + b"\0")
    other.rename(model)
    with ServerProcess(*options) as third:
        assert complete(third)[0] == "miss"
