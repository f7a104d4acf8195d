"""The demo model, which comes with the package, on the real server: what it answers; and answers that quote,
which are drafted and verified.

(What needs a model that knows something: `test_smollm2.py`.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.serving import sdk
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.native, pytest.mark.thorough]

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
        page = self.process.get("/metrics").text
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + " "))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    options = ("--model", "demo", "--experiment", "always_drafts=on")
    with ServerProcess(*options) as process, sdk(process) as client:
        yield Served(process, client)


CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather in a city", "parameters": CITY}
WEATHER: Any = {"type": "function", "function": FUNCTION}


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


def test_quotations_are_drafted_and_counted(served: Served) -> None:
    names = ("ocs_drafted_tokens_total", "ocs_accepted_draft_tokens_total")
    before = [served.counted(name) for name in names]
    answers = [served.ask(said, n=2) for said in QUOTING]
    drafted = sum(answer.timings["draft_n"] for answer in answers)
    accepted = sum(answer.timings["draft_n_accepted"] for answer in answers)
    assert 0 < accepted <= drafted
    assert all(answer.choices[0].message.content == answer.choices[1].message.content for answer in answers)
    drafted_in_all, accepted_in_all = (served.counted(name) for name in names)
    assert [drafted_in_all - before[0], accepted_in_all - before[1]] == [drafted, accepted]
    assert served.process.get("/v1/stats").json()["speculation"] == {
        "drafted_since_start": drafted_in_all,
        "accepted_since_start": accepted_in_all,
        "acceptance_rate": round(accepted_in_all / drafted_in_all, 4),
    }
