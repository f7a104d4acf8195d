"""The model that comes with the package: the real server with the demo model of `model_assets/`.

(What needs a model that knows something: `test_smollm2.py`.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def demo() -> Iterator[openai.OpenAI]:
    with (
        ServerProcess("--model", "demo") as process,
        openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0) as sdk,
    ):
        yield sdk


def answer(client: openai.OpenAI, *said: str, **fields: Any) -> Any:
    """Greedy; `said`: the user's turn and the assistant's, by turns."""
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    asked = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 200, **fields}
    return client.chat.completions.create(**asked)


def test_it_answers_in_english_and_stops_by_itself(demo: openai.OpenAI) -> None:
    choice = answer(demo, "Who are you?").choices[0]
    assert choice.finish_reason == "stop"
    assert "demo model" in choice.message.content


def test_it_remembers(demo: openai.OpenAI) -> None:
    said = ("My name is Anna and I live in Paris.", "Nice to meet you.", "Where do I live?")
    assert "Paris" in answer(demo, *said).choices[0].message.content


def test_it_calls_the_tool_that_fits(demo: openai.OpenAI) -> None:
    choice = answer(demo, "What is the weather in Paris?", tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0].function
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
