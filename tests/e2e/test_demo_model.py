"""The demo model, which comes with the package, on the real server: what it answers; and answers that quote,
which are drafted and verified.

(What needs a model that knows something: `test_smollm2.py`.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.serving import sdk
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

DRAFT = Path(__file__).parents[2] / "model_assets" / "demo-draft.gguf"
DRAFTING = ("--experiment", "always_drafts=on")
LAMP = "I bought this lamp for my desk. I like the warm light and the low price. 4 out of 5 stars."
REVIEW: Any = {
    "type": "object",
    "properties": {
        "rating": {"type": "integer", "minimum": 1, "maximum": 5},
        "pros": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 4},
        "summary": {"type": "string", "maxLength": 120},
    },
    "required": ["rating", "pros", "summary"],
    "additionalProperties": False,
}
BEADS: Any = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 30, "maxItems": 30}
QUOTING = (
    "Repeat this text: The red fox ran over the hill to the old mill, and the mill turned slowly.",
    "Count from 1 to 20.",
    "Say hello 12 times.",
)


class Served:
    def __init__(self, process: ServerProcess, client: openai.OpenAI) -> None:
        self.process = process
        self.client = client

    def ask(self, said: str, **fields: Any) -> Any:
        asked = {"messages": [{"role": "user", "content": said}], "temperature": 0, "max_tokens": 120}
        return self.client.chat.completions.create(model="demo", **{**asked, **fields})

    def counted(self, name: str) -> float:
        page = httpx.get(self.process.url + "/metrics").text
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + " "))


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    with ServerProcess("--model", "demo", *options) as process, sdk(process) as client:
        yield Served(process, client)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(*DRAFTING) as served:
        yield served


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_the_demo_model_answers_in_english_remembers_and_calls_the_tool_that_fits(served: Served) -> None:
    choice = served.ask("Who are you?").choices[0]
    assert choice.finish_reason == "stop"
    assert "demo model" in choice.message.content
    said = ("My name is Anna and I live in Paris.", "Nice to meet you.", "Where do I live?")
    turns = [{"role": "assistant" if i == 1 else "user", "content": text} for i, text in enumerate(said)]
    assert "Paris" in served.ask("", messages=turns).choices[0].message.content
    choice = served.ask("What is the weather in Paris?", tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0].function
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})


def figures(answer: Any) -> tuple[int, int]:
    return answer.timings["draft_n"], answer.timings["draft_n_accepted"]


def test_quotations_are_drafted_and_counted(served: Served) -> None:
    names = ("ocs_drafted_tokens_total", "ocs_accepted_draft_tokens_total")
    before = [served.counted(name) for name in names]
    answers = [served.ask(said, n=2) for said in QUOTING]
    drafted = sum(figures(answer)[0] for answer in answers)
    accepted = sum(figures(answer)[1] for answer in answers)
    assert 0 < accepted <= drafted
    assert all(answer.choices[0].message.content == answer.choices[1].message.content for answer in answers)
    drafted_in_all, accepted_in_all = (served.counted(name) for name in names)
    assert [drafted_in_all - before[0], accepted_in_all - before[1]] == [drafted, accepted]
    assert httpx.get(served.process.url + "/v1/stats").json()["speculation"] == {
        "drafted_since_start": drafted_in_all,
        "accepted_since_start": accepted_in_all,
        "acceptance_rate": round(accepted_in_all / drafted_in_all, 4),
    }


def test_streams_and_log_probabilities_come_token_by_token(served: Served) -> None:
    said = QUOTING[1]
    whole = served.ask(said, logprobs=True, top_logprobs=2).choices[0]
    told = [part.token for part in whole.logprobs.content]
    assert "".join(told) == whole.message.content
    assert all(part.top_logprobs[0].logprob <= 0 for part in whole.logprobs.content)
    stream = served.ask(said, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == whole.message.content
    assert chunks[-1].timings["draft_n_accepted"] > 0


def test_json_that_quotes_fits_its_schema(served: Served) -> None:
    asked = f"Extract the rating, pros and summary from this review as JSON.\n\n{LAMP}"
    wanted = {"type": "json_schema", "json_schema": {"name": "review", "strict": True, "schema": REVIEW}}
    for temperature in (0.0, 1.2):
        answer = served.ask(asked, response_format=wanted, temperature=temperature, max_tokens=300, n=8)
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            assert set(json.loads(choice.message.content)) == {"rating", "pros", "summary"}


def test_json_that_repeats_itself_is_drafted(served: Served) -> None:
    answer = served.ask("Name the beads.", extra_body={"guided_json": BEADS}, max_tokens=300)
    assert len(json.loads(answer.choices[0].message.content)) == 30
    drafted, accepted = figures(answer)
    assert 0 < accepted <= drafted


def test_it_can_be_switched_off() -> None:
    with serving("--speculation", "off") as served:
        assert figures(served.ask(QUOTING[1])) == (0, 0)


@pytest.mark.slow
def test_a_draft_model_drafts_what_is_no_quotation() -> None:
    with serving("--draft-model", str(DRAFT), *DRAFTING) as served:
        drafted, accepted = figures(served.ask("Tell me a short story about a dog."))
    assert 0 < accepted <= drafted
