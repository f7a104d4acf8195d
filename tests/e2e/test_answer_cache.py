"""Answer cache of a real server with SmolLM2 and MiniLM.

Reopened stores: tests/answers/test_stores.py. Changed model files: tests/api/test_answer_cache.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import key_file
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

QUESTION = "How do I reset my password?"
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
    """Return the state of the cache and the answer. On a busy machine a question may be embedded too late to
    be compared; then it is sent again."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    answers = list[httpx.Response]()

    def is_looked_up() -> bool:
        answers.append(server.post("/v1/chat/completions", json=body, headers={"x-api-key": key}))
        return answers[-1].headers["x-cache"] != "bypass"

    wait_until(is_looked_up)
    return answers[-1].headers["x-cache"], answers[-1].json()["choices"][0]["message"]["content"]


def test_a_paraphrase_gets_the_cached_answer(server: ServerProcess) -> None:
    """Most clients send neither a seed nor a temperature. Other questions:
    tests/api/test_answer_cache.py."""
    cache_state, answer = ask(server, QUESTION)
    assert cache_state == "miss"
    ask(server, "Is it safe to eat raw eggs?")
    ann = {"x-api-key": "ann"}  # answers are stored in the background
    wait_until(lambda: server.get("/v1/cache/stats", headers=ann).json()["answers"]["entries"] >= 2)
    assert ask(server, PARAPHRASE) == ("semantic; similarity=0.99", answer)
    assert ask(server, "Is it not safe to eat raw eggs?")[0] == "miss"
    assert ask(server, PARAPHRASE, key="bob")[0] == "miss"
