"""What needs a model whose words mean something: the real server with the demo model of `model_assets/`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

LAMP = "I bought this lamp for my desk. I like the warm light and the low price. 4 out of 5 stars."
REVIEW: Any = {
    "type": "object",
    "properties": {
        "rating": {"type": "integer", "minimum": 1, "maximum": 5},
        "pros": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 4},
        "cons": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 4},
        "summary": {"type": "string", "maxLength": 120},
    },
    "required": ["rating", "pros", "cons", "summary"],
    "additionalProperties": False,
}
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


def test_the_same_conversation_is_computed_once(demo: openai.OpenAI) -> None:
    said = [f"{LAMP} {LAMP} {LAMP}", "Noted.", "What is good about it?"]
    first = answer(demo, *said)
    again = answer(demo, *said)
    assert again.usage.prompt_tokens_details.cached_tokens >= 64, "a block of the prefix cache at least"
    assert again.choices[0].message.content == first.choices[0].message.content


def test_a_stop_string_ends_a_story_before_its_second_sentence(demo: openai.OpenAI) -> None:
    asked = "Tell me a short story about a dog."
    whole = answer(demo, asked).choices[0].message.content
    cut = answer(demo, asked, stop=[". "]).choices[0]
    assert (cut.finish_reason, cut.message.content) == ("stop", whole.partition(". ")[0])


def test_it_calls_the_tool_that_fits(demo: openai.OpenAI) -> None:
    choice = answer(demo, "What is the weather in Paris?", tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0].function
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})


def test_it_reads_a_review_with_a_grammar_and_without(demo: openai.OpenAI) -> None:
    asked = f"Extract the rating, pros, cons and summary from this review as JSON.\n\n{LAMP}"
    wanted = {"type": "json_schema", "json_schema": {"name": "review", "strict": True, "schema": REVIEW}}
    for fields in ({}, {"response_format": wanted}):
        read = json.loads(answer(demo, asked, **fields).choices[0].message.content)
        assert read["rating"] == 4
        assert read["pros"] == ["warm light", "low price"]


def test_reviews_stay_within_bounds_at_any_temperature(demo: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "review", "strict": True, "schema": REVIEW}}
    asked = f"Extract the rating, pros, cons and summary from this review as JSON.\n\n{LAMP}"
    choices = answer(demo, asked, response_format=wanted, temperature=1.5, n=32, max_tokens=400).choices
    for choice in choices:
        assert choice.finish_reason == "stop"
        read = json.loads(choice.message.content)
        assert 1 <= read["rating"] <= 5
        assert len(read["summary"]) <= 120
        assert max(len(read["pros"]), len(read["cons"])) <= 4
