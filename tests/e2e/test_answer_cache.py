"""The cache of answers on a real server with SmolLM2 and MiniLM, over restarts, and between two servers."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving import key_file
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until
from tests.warm import run

pytestmark = [pytest.mark.native, pytest.mark.thorough]

ONE = "How do I reset my password?"
PARAPHRASE = "How can I reset my password?"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "reset", "parameters": {"type": "object", "properties": {}}},
}


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
        load(process, "minilm")
        yield process


def load(server: ServerProcess, model: str) -> None:
    url = f"{server.url}/v1/models/{model}/load"
    assert httpx.post(url, headers={"x-api-key": "ann"}, timeout=DEADLINE_S).status_code == 200


def ask(
    server: ServerProcess, text: str, *before: dict[str, str], key: str = "ann", **fields: object
) -> tuple[str, str]:
    """What the cache did, and the answer. A question that is embedded too late, on a machine that is busy
    elsewhere, is compared with none: it is asked again."""
    said = [*before, {"role": "user", "content": text}]
    body = {"model": "smollm2", "messages": said, "max_tokens": 4, **fields}
    url, headers, answers = server.url + "/v1/chat/completions", {"x-api-key": key}, list[httpx.Response]()

    def is_compared() -> bool:
        answers.append(httpx.post(url, json=body, headers=headers, timeout=DEADLINE_S))
        return answers[-1].headers["x-cache"] != "bypass" or fields.get("cache") is False

    wait_until(is_compared)
    return answers[-1].headers["x-cache"], answers[-1].json()["choices"][0]["message"]["content"]


def kept(server: ServerProcess, at_least: int) -> None:
    """Answers are written while the server goes on."""
    url, headers = server.url + "/v1/cache/stats", {"x-api-key": "ann"}
    wait_until(lambda: httpx.get(url, headers=headers).json()["answers"]["entries"] >= at_least)


def clear(server: ServerProcess) -> None:
    assert server.delete("/v1/cache", headers={"x-api-key": "ann"}).status_code == 204


def test_a_paraphrase_is_answered_alike(server: ServerProcess) -> None:
    """Clients that name neither a seed nor a temperature are most of all."""
    clear(server)
    said, answer = ask(server, ONE)
    assert said == "miss"
    kept(server, 1)
    assert ask(server, PARAPHRASE) == ("semantic; similarity=0.99", answer)


def test_what_is_another_question_is_asked(server: ServerProcess) -> None:
    clear(server)
    system = {"role": "system", "content": "You are a help desk."}
    ask(server, ONE, temperature=0)
    ask(server, "Is it safe to eat raw eggs?", temperature=0)
    kept(server, 2)
    assert ask(server, PARAPHRASE, system, temperature=0)[0] == "miss"
    assert ask(server, PARAPHRASE, key="bob", temperature=0)[0] == "miss"
    assert ask(server, PARAPHRASE, temperature=0, tools=[TOOL])[0] == "miss"
    assert ask(server, "Is it not safe to eat raw eggs?", temperature=0)[0] == "miss"
    assert ask(server, PARAPHRASE, temperature=0, cache=False)[0] == "bypass"
    assert ask(server, ONE, temperature=0)[0] == "exact"


TINY_OPTIONS = ("--ctx-size", "512", "--cache-mb", "0")


def complete(server: ServerProcess) -> tuple[str, str]:
    """It is asked again where the store came late, on a machine that is busy elsewhere."""
    body, answers = {"prompt": "x", "max_tokens": 9, "seed": 3}, list[httpx.Response]()

    def is_cached_or_missed() -> bool:
        answers.append(server.post("/v1/completions", json=body))
        return bool(answers[-1].headers["x-cache"] != "bypass")

    wait_until(is_cached_or_missed)
    return answers[-1].headers["x-cache"], answers[-1].json()["choices"][0]["text"]


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--semantic-cache", "0.95"), "no model embeds: add --model minilm"),
        (
            ("--semantic-cache", "0.95", "--semantic-cache-model", "x"),
            "--semantic-cache-model: there is no model 'x'",
        ),
        (("--answer-cache", "http://x"), "--answer-cache: expected"),
    ],
)
def test_what_cannot_be_is_one_line_at_start(options: tuple[str, ...], said: str) -> None:
    model = ("--model", f"tiny={tiny_model_path()}")
    done = run("serve", "--port", "0", "--jobs-db", "none", *model, "--log-level", "error", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
