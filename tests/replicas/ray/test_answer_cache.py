"""The cache of answers over real Ray: two API replicas, and one engine replica of each of two models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from chaos_parts.server import RayServer

from tests.tiny_bert import TinyBert
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.timeout(400)]

QUESTION = "how do i reset my password?"
SIMILAR = "how can i reset my password?"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayServer]:
    folder = tmp_path_factory.mktemp("ray")
    model = Path(shutil.copy(tiny_model_path(), folder / "model.gguf"))
    embedder = TinyBert().write(folder / "embedder.gguf")
    options = ["--model", f"embedder={embedder}", "--semantic-cache", "0.5", "--jobs-db", "none"]
    options += ["--answer-cache", str(folder / "answers.db")]
    with RayServer(model, folder / "log.txt", *options, replicas=1, api_replicas=2) as running:
        yield running


def ask(server: RayServer, text: str) -> tuple[str, str]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S) as sdk:
        raw = sdk.chat.completions.with_raw_response.create(
            model="chaos", messages=[{"role": "user", "content": text}], max_tokens=12, temperature=0
        )
        return raw.headers["x-cache"], raw.parse().choices[0].message.content or ""


def test_api_replicas_return_each_others_cached_answers(server: RayServer) -> None:
    """A call goes to either replica, so ten hits cannot all come from the one that computed the answer."""
    answers: list[tuple[str, str]] = []

    def cache_state(text: str) -> str:
        answers.append(ask(server, text))
        return answers[-1][0]

    wait_until(lambda: cache_state(QUESTION) == "exact")
    first = answers[-1]
    assert [ask(server, QUESTION) for _ in range(10)] == [first] * 10
    wait_until(lambda: cache_state(SIMILAR) != "bypass")  # a bypass means that its vector came too late
    state, text = answers[-1]
    assert state.startswith("semantic; similarity=0.")
    assert text == first[1]
    assert httpx.delete(server.url + "/v1/cache?only=answers", timeout=DEADLINE_S).status_code == 204
    assert ask(server, QUESTION)[0] == "miss"
