"""A model that generates reranks by its first token, where its template asks for yes or no."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from openai_cpu_server.prompt.chat_prompts import RerankTemplate
from openai_cpu_server.prompt.chat_template import ChatTemplate
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.native

TEMPLATE = """<|im_start|>system
Judge whether the Document answers the Query. The answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Query>: {% for m in messages if m.role == "query" %}{{ m.content }}{% endfor %}

<Document>: {% for m in messages if m.role == "document" %}{{ m.content }}{% endfor %}<|im_end|>
<|im_start|>assistant
"""
QUERY = "When does the bakery in the old town open in the morning?"
DOCUMENTS = [
    "The river runs under a bridge.",
    "The bakery opens at seven.",
    "A red bicycle stands in the cellar.",
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path: Path = tmp_path_factory.mktemp("judge") / "judge.jinja"
    path.write_text(TEMPLATE)
    with ServerProcess("--model", str(tiny_model_path()), "--chat-template", str(path)) as server:
        yield server.url


def log_odds(url: str, document: str) -> float:
    """By what the completions route tells of the same prompt: a token that is biased to be sampled tells its
    own log-probability."""
    prompt = RerankTemplate(ChatTemplate(TEMPLATE, bos_text="", eos_text="")).render(QUERY, document)
    words = {}
    for word in ("yes", "no"):
        (token, *_) = httpx.post(url + "/tokenize", json={"content": word}).json()["tokens"]
        body = {"prompt": prompt, "max_tokens": 1, "logprobs": 0, "logit_bias": {str(token): 100}}
        answer = httpx.post(url + "/v1/completions", json={**body, "temperature": 0}).json()
        (words[word],) = answer["choices"][0]["logprobs"]["token_logprobs"]
    return float(words["yes"] - words["no"])


def test_scores_are_those_of_the_first_token(url: str) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "use_activation": False}
    raw = httpx.post(url + "/v1/rerank", json=body).json()
    told = {item["index"]: item["relevance_score"] for item in raw["results"]}
    expected = [log_odds(url, document) for document in DOCUMENTS]
    assert [told[index] for index in range(3)] == pytest.approx(expected, abs=0.05)
    squeezed = httpx.post(url + "/v1/rerank", json={**body, "use_activation": True}).json()["results"]
    for item in squeezed:
        assert item["relevance_score"] == pytest.approx(1 / (1 + math.exp(-told[item["index"]])), abs=0.01)
    assert [item["index"] for item in squeezed] == sorted(told, key=lambda index: -told[index])
