"""Thoughts through the real server: the tiny model with a template that opens them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.serving import sdk, tiny_server

pytestmark = pytest.mark.native

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
ASKED: Any = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me about the river and the bridge."}],
    "temperature": 0,
}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    template: Path = tmp_path_factory.mktemp("thinking") / "template.jinja"
    template.write_text(TEMPLATE)
    with tiny_server("--chat-template", str(template)) as process, sdk(process) as client:
        yield client


def test_a_budget_ends_the_thoughts_and_the_answer_follows(thinker: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 150, "extra_body": {"thinking_budget": 12}}
    message = thinker.chat.completions.create(**asked).choices[0].message
    assert message.content
    assert message.model_extra["reasoning"].endswith("give my answer now.")
    deltas = [chunk.choices[0].delta for chunk in thinker.chat.completions.create(**asked, stream=True)]
    thoughts = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    assert thoughts == message.model_extra["reasoning"]
    assert "".join(delta.content or "" for delta in deltas) == message.content
