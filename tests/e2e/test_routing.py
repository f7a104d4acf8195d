"""Routers of one real server between the demo model and the small one that drafts for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.serving import sdk
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

ASSETS = Path(__file__).parents[2] / "model_assets"
TOML = f"""
ctx_size = 2048
cache_mb = 8
[models.large]
source = "{ASSETS / "demo.gguf"}"
[models.small]
source = "{ASSETS / "demo-draft.gguf"}"
chat_template = "TEMPLATE"
[models.content]
router = {{ small = "small", large = "large", by = "cascade", cascade = {{ mean_logprob = -100 }} }}
[models.strict]
router = {{ small = "small", large = "large", by = "cascade", cascade = {{ mean_logprob = 0 }} }}
[models.asks.router]
by = "classifier"
small = "small"
large = "large"
classifier = {{ model = "large" }}
"""
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("routing")
    (folder / "template").write_text(TEMPLATE)
    (folder / "c.toml").write_text(TOML.replace("TEMPLATE", str(folder / "template")))
    with ServerProcess("--config", str(folder / "c.toml")) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with sdk(server, timeout=DEADLINE_S) as client:
        yield client


STORY: Any = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 24,
    "temperature": 0,
}


def asked(client: openai.OpenAI, model: str) -> tuple[str, str, str]:
    """Who answered, why, and the answer."""
    raw = client.chat.completions.with_raw_response.create(model=model, **STORY)
    content = raw.parse().choices[0].message.content or ""
    return raw.headers["x-routed-model"], raw.headers["x-routed-why"], content


def streamed(client: openai.OpenAI, model: str) -> tuple[str, str]:
    with client.chat.completions.with_streaming_response.create(model=model, **STORY, stream=True) as raw:
        chunks = list(raw.parse())
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    return raw.headers["x-routed-model"], "".join(deltas)


def test_a_cascade_answers_as_the_model_does_that_it_names(client: openai.OpenAI) -> None:
    for router, model in (("content", "small"), ("strict", "large")):
        who, why, answer = asked(client, router)
        assert (who, why.startswith("small: mean_logprob=-")) == (model, True)
        plain = client.chat.completions.create(model=model, **STORY)
        assert answer == plain.choices[0].message.content
        assert streamed(client, router) == (model, answer)
