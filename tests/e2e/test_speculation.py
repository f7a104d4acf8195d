"""Answers that quote, from the real server with the demo model: drafted and verified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = [pytest.mark.native, pytest.mark.thorough]

DRAFT = Path(__file__).parents[2] / "model_assets" / "demo-draft.gguf"
DRAFTING = ("--model", "demo", "--experiment", "always_drafts=on")
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
        return self.client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": said}],
            **{"temperature": 0, "max_tokens": 120, **fields},
        )

    def counted(self, name: str) -> float:
        page = httpx.get(self.process.url + "/metrics").text
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + " "))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with (
        ServerProcess(*DRAFTING) as process,
        openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield Served(process, client)


def figures(answer: Any) -> tuple[int, int]:
    return answer.timings["draft_n"], answer.timings["draft_n_accepted"]


def test_quotations_are_drafted_and_counted(served: Served) -> None:
    answers = [served.ask(said, n=2) for said in QUOTING]
    drafted = sum(figures(answer)[0] for answer in answers)
    accepted = sum(figures(answer)[1] for answer in answers)
    assert 0 < accepted <= drafted
    assert all(answer.choices[0].message.content == answer.choices[1].message.content for answer in answers)
    assert served.counted("ocs_drafted_tokens_total") == drafted
    assert served.counted("ocs_accepted_draft_tokens_total") == accepted
    stats = httpx.get(served.process.url + "/v1/stats").json()["speculation"]
    assert stats == {
        "drafted_since_start": drafted,
        "accepted_since_start": accepted,
        "acceptance_rate": round(accepted / drafted, 4),
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


def test_a_seed_gives_the_same_answer_again(served: Served) -> None:
    for seed in range(3):
        first, again = (served.ask(QUOTING[0], temperature=0.8, seed=seed) for _ in range(2))
        assert first.choices[0].message.content == again.choices[0].message.content


def test_it_can_be_switched_off() -> None:
    with (
        ServerProcess("--model", "demo", "--speculation", "off") as process,
        openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        assert figures(Served(process, client).ask(QUOTING[1])) == (0, 0)


def test_a_draft_model_drafts_what_is_no_quotation() -> None:
    with (
        ServerProcess(
            "--model", "demo", "--draft-model", str(DRAFT), "--experiment", "always_drafts=on"
        ) as process,
        openai.OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        answer = Served(process, client).ask("Tell me a short story about a dog.")
    drafted, accepted = figures(answer)
    assert 0 < accepted <= drafted


def test_a_draft_model_of_another_tokenizer_is_refused() -> None:
    process = ServerProcess("--model", str(tiny_model_path()), "--draft-model", str(DRAFT))
    assert process.process.wait(timeout=60) != 0
    process.stop(15)
    assert any("demo-draft.gguf has another tokenizer" in line for line in process.lines)


def test_an_unknown_way_is_refused_by_name() -> None:
    process = ServerProcess("--speculation", "sometimes")
    assert process.process.wait(timeout=30) != 0
    process.stop(15)
    assert any("--speculation" in line for line in process.lines)
