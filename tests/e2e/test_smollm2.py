"""Content of answers: the real server with SmolLM2, its default model."""

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
    """Client of a server that drafts wherever it can: quotations in JSON and elsewhere."""
    with ServerProcess("--experiment", "always_drafts=on") as process, sdk(process) as client:
        assert not [line for line in process.lines if "WARNING" in line]
        assert [model.id for model in client.models.list()] == ["smollm2"]
        yield client


def conversation(*texts: str) -> list[dict[str, str]]:
    """Return messages of the user and the assistant, by turns."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def answer(client: openai.OpenAI, messages: Any, **fields: Any) -> Any:
    params = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 200, **fields}
    return client.chat.completions.create(**params)


def test_an_answer_stops_by_itself(client: openai.OpenAI) -> None:
    choice = answer(client, conversation("Tell me the capital of France.")).choices[0]
    assert choice.finish_reason == "stop"
    assert "Paris" in choice.message.content


def test_an_answer_fills_in_a_schema(client: openai.OpenAI) -> None:
    messages = conversation("Extract the person: Maria Lopez is 34 years old and lives in Madrid.")
    form = {"type": "json_schema", "json_schema": {"name": "wanted", "strict": True, "schema": PERSON}}
    content = answer(client, messages, response_format=form).choices[0].message.content
    assert json.loads(content) == {"name": "Maria Lopez", "age": 34, "city": "Madrid"}


def test_the_right_tool_is_called_though_the_template_has_no_tools(client: openai.OpenAI) -> None:
    messages = conversation("What is the weather in Paris?")
    options = {"tool_choice": "required", "parallel_tool_calls": False}
    choice = answer(client, messages, tools=TOOLS, **options).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
    reply = answer(client, [*messages, choice.message, result], tools=TOOLS, tool_choice="none")
    assert "sunny" in reply.choices[0].message.content


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
def test_a_question_with_default_settings_is_answered_in_plain_words(
    client: openai.OpenAI, question: str
) -> None:
    """Plain words have letters, numbers and punctuation. The seed makes the answer reproducible."""
    messages: Any = conversation(question)
    choice = client.chat.completions.create(model="smollm2", messages=messages, seed=1).choices[0]
    assert choice.finish_reason in ("stop", "length")
    text = choice.message.content or ""
    odd = re.findall(r"[^\w\s.,:;!?'\"()*$%&#/+=°’“”–—-]|[a-z][A-Z]{2}|\w{25}", text)
    assert (bool(text.strip()), odd) == (True, [])
