"""The tiny model with templates that open thoughts, or that request yes or no, by which the model reranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from openai_cpu_server.prompt.chat_prompts import RerankTemplate
from openai_cpu_server.prompt.chat_template import ChatTemplate
from tests.e2e.serving import sdk, tiny_server
from tests.server_process import ServerProcess

pytestmark = pytest.mark.native

THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)


def test_a_budget_ends_the_thoughts_and_the_answer_follows(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Tell me about the river and the bridge."}]
    params: Any = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 150}
    params |= {"extra_body": {"thinking_budget": 12}}
    (tmp_path / "template").write_text(THINKING)
    with tiny_server("--chat-template", str(tmp_path / "template")) as server, sdk(server) as client:
        message = client.chat.completions.create(**params).choices[0].message
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**params, stream=True)]
    assert message.content
    assert message.model_extra["reasoning"].endswith("give my answer now.")
    thoughts = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    assert thoughts == message.model_extra["reasoning"]
    assert "".join(delta.content or "" for delta in deltas) == message.content


JUDGING = """<|im_start|>system
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


def log_odds(server: ServerProcess, document: str) -> float:
    """Compute the log-odds by the completions route. A token that is biased to be sampled reports its own
    log-probability."""
    prompt = RerankTemplate(ChatTemplate(JUDGING, bos_text="", eos_text="")).render(QUERY, document)
    logprobs = {}
    for word in ("yes", "no"):
        (token, *_) = server.post("/tokenize", {"content": word}).json()["tokens"]
        body = {"prompt": prompt, "max_tokens": 1, "logprobs": 0, "logit_bias": {str(token): 100}}
        answer = server.post("/v1/completions", {**body, "temperature": 0}).json()
        (logprobs[word],) = answer["choices"][0]["logprobs"]["token_logprobs"]
    return float(logprobs["yes"] - logprobs["no"])


def test_scores_are_those_of_the_first_token(tmp_path: Path) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "use_activation": False}
    (tmp_path / "template").write_text(JUDGING)
    with tiny_server("--chat-template", str(tmp_path / "template")) as server:
        raw = server.post("/v1/rerank", body).json()["results"]
        squeezed = server.post("/v1/rerank", {**body, "use_activation": True}).json()["results"]
        expected = [log_odds(server, document) for document in DOCUMENTS]
    scores = {item["index"]: item["relevance_score"] for item in raw}
    assert [scores[index] for index in range(3)] == pytest.approx(expected, abs=0.05)
    for item in squeezed:
        assert item["relevance_score"] == pytest.approx(1 / (1 + math.exp(-scores[item["index"]])), abs=0.01)
    assert [item["index"] for item in squeezed] == sorted(scores, key=lambda index: -scores[index])
