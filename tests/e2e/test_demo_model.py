"""Answers of the packaged demo model on the real server, and quotations, which are drafted and verified.

Tests that need a model with knowledge: `test_smollm2.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

QUOTING = (
    "Repeat this text: The red fox ran over the hill to the old mill, and the mill turned slowly.",
    "Count from 1 to 20.",
    "Say hello 12 times.",
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--model", "demo", "--experiment", "always_drafts=on") as process:
        yield process


def ask(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    params = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 120}
    return client.chat.completions.create(model="demo", **{**params, **fields})


def metric_sum(server: ServerProcess, name: str) -> float:
    page = server.get("/metrics").text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + " "))


CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather in a city", "parameters": CITY}
WEATHER: Any = {"type": "function", "function": FUNCTION}


def test_the_demo_model_answers_in_english_remembers_and_calls_the_tool_that_fits(
    client: openai.OpenAI,
) -> None:
    choice = ask(client, "Who are you?").choices[0]
    assert choice.finish_reason == "stop"
    assert "demo model" in choice.message.content
    texts = ("My name is Anna and I live in Paris.", "Nice to meet you.", "Where do I live?")
    turns = [{"role": "assistant" if i == 1 else "user", "content": text} for i, text in enumerate(texts)]
    assert "Paris" in ask(client, "", messages=turns).choices[0].message.content
    choice = ask(client, "What is the weather in Paris?", tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0].function
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})


def test_quotations_are_drafted_and_counted(server: ServerProcess, client: openai.OpenAI) -> None:
    names = ("ocs_drafted_tokens_total", "ocs_accepted_draft_tokens_total")
    before = [metric_sum(server, name) for name in names]
    answers = [ask(client, text, n=2) for text in QUOTING]
    drafted = sum(answer.timings["draft_n"] for answer in answers)
    accepted = sum(answer.timings["draft_n_accepted"] for answer in answers)
    assert 0 < accepted <= drafted
    assert all(answer.choices[0].message.content == answer.choices[1].message.content for answer in answers)
    drafted_in_all, accepted_in_all = (metric_sum(server, name) for name in names)
    assert [drafted_in_all - before[0], accepted_in_all - before[1]] == [drafted, accepted]
    assert server.get("/v1/stats").json()["speculation"] == {
        "drafted_since_start": drafted_in_all,
        "accepted_since_start": accepted_in_all,
        "acceptance_rate": round(accepted_in_all / drafted_in_all, 4),
    }
