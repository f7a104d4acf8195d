"""llama-server's routes: what its clients send, the shapes that they read, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from openai_cpu_server.contract.request import GenerationRequest
from tests.api.fake_engine import FakeEngine
from tests.api.serving import api, client
from tests.api.talking import complete, error_of, events
from tests.docs.markdown import DOCS

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


class HearingEngine(FakeEngine):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[GenerationRequest] = []

    def generate(self, requests: Any) -> Any:
        self.heard += requests
        return super().generate(requests)


@pytest.fixture
async def hearing() -> AsyncIterator[tuple[httpx.AsyncClient, HearingEngine]]:
    engine = HearingEngine()
    async with client(api(engine)) as http:
        yield http, engine


async def ask(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/completion", json={"prompt": "hi", "n_predict": 8, "temperature": 0, **fields})


def documented() -> Iterator[tuple[str, str, str, int]]:
    """The method, path, body and status of each line of the page."""
    for line in (DOCS / "llama-server.md").read_text("utf-8").splitlines():
        if found := re.match(r"\| `(GET|POST) (/\S*) ?(.*?)` \| (\d+) \|", line):
            method, path, body, status = found.groups()
            yield method, path, body.replace("\\|", "|"), int(status)


@pytest.mark.parametrize(("method", "path", "body", "status"), [*documented()])
async def test_each_line_of_the_manual(
    http: httpx.AsyncClient, method: str, path: str, body: str, status: int
) -> None:
    answer = await http.request(method, path, content=body)
    assert answer.status_code == status, answer.text
    if status == 400:
        error_of(answer)


async def test_an_answer_is_that_of_the_other_routes_in_llama_servers_shape(http: httpx.AsyncClient) -> None:
    plain = (await complete(http)).json()["choices"][0]["text"]
    whole = (await ask(http, return_tokens=True)).json()
    assert whole["content"] == plain
    assert (whole["stop"], whole["stop_type"], whole["prompt"]) == (True, "limit", "hi")
    assert (whole["tokens_predicted"], len(whole["tokens"])) == (8, 8)
    assert whole["tokens_cached"] == whole["tokens_evaluated"] + 8
    assert whole["generation_settings"]["top_k"] == 40, "llama-server's defaults"
    timings = whole["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == whole["tokens_evaluated"]
    assert timings["predicted_n"] == 8
    *chunks, last = events(await ask(http, stream=True, timings_per_token=True, n_probs=1))
    assert "".join(str(chunk["content"]) for chunk in chunks) == plain
    assert [chunk["tokens_predicted"] for chunk in chunks] == [*range(1, len(chunks) + 1)]
    assert all(not chunk["stop"] and chunk["timings"] for chunk in chunks)
    assert all(len(chunk["tokens"]) == len(chunk["completion_probabilities"]) for chunk in chunks)  # type: ignore[arg-type]
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert "[DONE]" not in (await ask(http, stream=True)).text


async def test_an_end_says_what_it_was() -> None:
    async with client(api(FakeEngine(says="one\ntwo"))) as http:
        ended = (await ask(http, n_predict=-1)).json()
        assert (ended["content"], ended["stop_type"], ended["has_new_line"]) == ("one\ntwo", "eos", True)


async def test_several_prompts_are_a_list_and_a_stream_tells_them_apart(http: httpx.AsyncClient) -> None:
    prompts = ["hi", [106, 109], [106, "k"]]
    told = (await ask(http, prompt=prompts)).json()
    assert [one["index"] for one in told] == [0, 1, 2]
    assert told[1]["content"] == told[2]["content"], "they are the same tokens"
    streamed = ["", "", ""]
    for chunk in events(await ask(http, prompt=prompts, stream=True)):
        streamed[int(str(chunk["index"]))] += str(chunk["content"])
    assert streamed == [one["content"] for one in told]


async def test_samplers_that_are_not_named_are_off(hearing: tuple[httpx.AsyncClient, HearingEngine]) -> None:
    http, engine = hearing
    fields: Json = {"temperature": 0.5, "min_p": 0.2, "dry_multiplier": 1, "repeat_penalty": 1.2}
    await ask(http, **fields, samplers="kt", seed=2**32 - 1)
    (asked,) = engine.heard
    assert (asked.sampling.top_k, asked.sampling.temperature) == (40, 0.5)
    assert (asked.sampling.min_p, asked.sampling.dry, asked.sampling.repeat_penalty) == (0.0, None, 1.0)
    assert asked.sampling.seed < 2**32 - 1
    error = error_of(await ask(http, **fields, samplers=["dry", "penalties"]))
    assert (error["param"], "penalties, dry" in str(error["message"])) == ("samplers", True)


async def test_biases_of_texts_are_those_of_their_tokens(
    hearing: tuple[httpx.AsyncClient, HearingEngine],
) -> None:
    http, engine = hearing
    await ask(http, logit_bias=[["ab", -1000], [70, 2], ["c", False], [71, False]])
    (asked,) = engine.heard
    a, b, c = (b"abc"[at] + 2 for at in range(3))
    assert asked.sampling.logit_bias == {70: 2.0, a: -100.0, b: -100.0}
    assert set(asked.sampling.bad_words) == {(c,), (71,)}


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [True]},
        {"prompt": [1, None]},
        {"prompt": [99_999_999]},
        {"logit_bias": [[1, 2, 3]]},
        {"logit_bias": {"1": True}},
        {"logit_bias": {"99999999": 1}},
        {"samplers": ["nobody"]},
        {"n_probs": 101},
        {"n_predict": 1.5},
        {"adaptive_target": 0.5},
        {"lora": [{"id": 0, "scale": 0.5}]},
    ],
)
async def test_what_cannot_be_is_refused_by_its_place(http: httpx.AsyncClient, fields: Json) -> None:
    error = error_of(await ask(http, **fields))
    assert error["param"] in (next(iter(fields)), "logit_bias")


async def test_fields_are_chosen_by_their_paths(http: httpx.AsyncClient) -> None:
    paths = ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing/at/all"]
    told = (await ask(http, response_fields=paths)).json()
    assert told.keys() == {*paths[:3]}
    assert json.dumps(told["generation_settings/n_predict"]) == "8"
