"""What answers mean: the real server with SmolLM2, which it serves where nobody names a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.serving import sdk
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

SHORT = {"type": "string", "maxLength": 40}


def schema(**properties: object) -> Any:
    fields = {"type": "object", "properties": properties, "required": [*properties]}
    return {**fields, "additionalProperties": False}


PERSON = schema(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 120}, city=SHORT)
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema(**{parameter: SHORT})}}
    for name, parameter in (("get_weather", "city"), ("send_email", "to"))
]


@pytest.fixture(scope="module")
def client(smollm2: Path) -> Iterator[openai.OpenAI]:
    """It drafts wherever it can: quotations in JSON and elsewhere."""
    with ServerProcess("--experiment", "always_drafts=on") as process, sdk(process) as client:
        assert not [line for line in process.lines if "WARNING" in line]
        assert [model.id for model in client.models.list()] == ["smollm2"]
        yield client


def said(*texts: str) -> list[dict[str, str]]:
    """The user's turn and the assistant's, by turns."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def answer(client: openai.OpenAI, messages: Any, **fields: Any) -> Any:
    asked = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 200, **fields}
    return client.chat.completions.create(**asked)


def test_it_answers_and_stops_by_itself(client: openai.OpenAI) -> None:
    choice = answer(client, said("Tell me the capital of France.")).choices[0]
    assert choice.finish_reason == "stop"
    assert "Paris" in choice.message.content


def test_it_fills_in_a_schema(client: openai.OpenAI) -> None:
    asked = said("Extract the person: Maria Lopez is 34 years old and lives in Madrid.")
    form = {"type": "json_schema", "json_schema": {"name": "wanted", "strict": True, "schema": PERSON}}
    read = answer(client, asked, response_format=form).choices[0].message.content
    assert json.loads(read) == {"name": "Maria Lopez", "age": 34, "city": "Madrid"}


def test_it_calls_the_tool_that_fits_though_its_template_knows_no_tools(client: openai.OpenAI) -> None:
    asked = said("What is the weather in Paris?")
    must = {"tool_choice": "required", "parallel_tool_calls": False}
    choice = answer(client, asked, tools=TOOLS, **must).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
    told = answer(client, [*asked, choice.message, result], tools=TOOLS, tool_choice="none")
    assert "sunny" in told.choices[0].message.content


QUESTIONS = (
    "Hello!", "What is the capital of France?", "Who wrote Romeo and Juliet?", "What is 2 + 2?",
    "Name three colours.", "What is the secret word?", "Tell me a short story about a cat.",
    "How do I boil an egg?", "What is the sun?", "Why is the sky blue?", "Give me a tip for sleeping better.",
    "What is a dog?", "How many days are in a week?", "Write a sentence about rain.", "What is Python?",
    "Translate 'good morning' to French.", "What do bees make?", "Recommend a book.",
    "Explain gravity in one sentence.", "What should I cook tonight?",
)  # fmt: skip


@pytest.mark.parametrize(
    "question", [*QUESTIONS[:1], *(pytest.param(q, marks=pytest.mark.slow) for q in QUESTIONS[1:])]
)
def test_a_first_question_with_nothing_set_is_answered_in_plain_words(
    client: openai.OpenAI, question: str
) -> None:
    """Plain words are of letters, numbers and the marks of a text. The seed makes the answer the same."""
    choice = client.chat.completions.create(model="smollm2", messages=said(question), seed=1).choices[0]
    assert choice.finish_reason in ("stop", "length")
    text = choice.message.content or ""
    odd = re.findall(r"[^\w\s.,:;!?'\"()*$%&#/+=°’“”–—-]|[a-z][A-Z]{2}|\w{25}", text)
    assert (bool(text.strip()), odd) == (True, [])
