"""`POST /v1/embeddings` against an engine in this process: exact answers, and everything that is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import ServedApplication, create_api
from openai_cpu_server.api.pooling.render import as_base64, as_numbers, checked, normalised
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.asgi import exchange
from tests.api.fake_engine import READY, FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, embedding_model, locked_api, num_live
from tests.api.talking import error_of
from tests.api.watching import page
from tests.fakes import FAKE_EMBEDDER, FAKE_RERANKER, vector_of
from tests.models.test_registry import model
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

PATH = "/v1/embeddings"
SIZE, LONGEST = FAKE_EMBEDDER.embedding_size, FAKE_EMBEDDER.max_input_tokens


def tokens_of(text: str) -> list[int]:
    return [0, *(byte + 2 for byte in text.encode()), 1]


def unit(tokens: list[int], size: int = SIZE) -> list[float]:
    vector = np.array(vector_of(tokens, SIZE)[:size])
    return [pytest.approx(number, abs=1e-6) for number in vector / np.linalg.norm(vector)]


class Served:
    """`chat` generates, `embedder` embeds; the first is the default."""

    def __init__(self) -> None:
        self.chat, self.embedder = FakeEngine(), FakeEngine(FAKE_EMBEDDER)
        self.models = ModelRegistry(
            [model("chat", engine=self.chat), embedding_model(self.embedder, "embedder", "e")]
        )

    def api(self, **options: Any) -> ServedApplication:
        return create_api(self.models, msgspec.structs.replace(OPTIONS, **options))


@pytest.fixture
async def served() -> Served:
    return Served()


@pytest.fixture
def app(served: Served) -> Starlette:
    return served.api().app


@pytest.fixture
async def http(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with client(app) as one:
        yield one


async def embed(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post(PATH, json={"model": "embedder", **fields})


async def test_a_text_becomes_a_vector_of_length_one(http: httpx.AsyncClient) -> None:
    answer = await embed(http, input="hello")
    body = answer.json()
    assert answer.status_code == 200
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": unit(tokens_of("hello"))}],
        "model": "embedder",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
        "timings": body["timings"],
    }
    timings = body["timings"]
    assert set(timings) == {"queue_ms", "compute_ms", "latency_ms", "tokens_per_second"}
    assert timings["queue_ms"] + timings["compute_ms"] == pytest.approx(timings["latency_ms"], abs=0.01)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["a", "bc"], [tokens_of("a"), tokens_of("bc")]),
        (tokens_of("hi"), [tokens_of("hi")]),
        ([tokens_of("hi"), tokens_of("a")], [tokens_of("hi"), tokens_of("a")]),
        (["x"] * 2048, [tokens_of("x")] * 2048),
    ],
)
async def test_inputs_of_all_kinds(http: httpx.AsyncClient, given: object, read: list[list[int]]) -> None:
    body = (await embed(http, input=given)).json()
    assert [item["index"] for item in body["data"]] == list(range(len(read)))
    assert body["data"][0]["embedding"] == unit(read[0])
    assert body["data"][-1]["embedding"] == unit(read[-1])
    assert body["usage"]["prompt_tokens"] == sum(map(len, read))


async def test_base64_holds_the_same_vector(http: httpx.AsyncClient) -> None:
    numbers = (await embed(http, input="hello", encoding_format="float")).json()["data"][0]["embedding"]
    text = (await embed(http, input="hello", encoding_format="base64")).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == np.array(numbers, np.float32).tolist()


@pytest.mark.parametrize("dimensions", [5, SIZE])
async def test_fewer_dimensions_are_cut_and_have_length_one_again(
    http: httpx.AsyncClient, dimensions: int
) -> None:
    body = (await embed(http, input="hello", dimensions=dimensions)).json()
    assert body["data"][0]["embedding"] == unit(tokens_of("hello"), dimensions)


@pytest.mark.parametrize(
    ("fields", "text", "kept"),
    [
        ({"truncate": True}, "a" * 100, "a" * (LONGEST - 2)),
        ({"truncate": True, "truncation_side": "left"}, "a" * 5000 + "b" * 62, "b" * (LONGEST - 2)),
        ({"truncate_prompt_tokens": 5}, "abcdef", "abc"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, "abcdef", "def"),
        ({"truncate_prompt_tokens": -1}, "abcdef", "abcdef"),
    ],
)
async def test_what_is_too_long_is_cut_where_that_is_asked_for(
    http: httpx.AsyncClient, fields: dict[str, object], text: str, kept: str
) -> None:
    """In our words, or to as many tokens as vLLM's clients say."""
    body = (await embed(http, input=[text, "b"], **fields)).json()
    assert body["data"][0]["embedding"] == unit(tokens_of(kept))
    assert body["usage"]["prompt_tokens"] == len(kept) + 2 + 3


async def test_without_a_model_the_first_that_embeds_is_meant(http: httpx.AsyncClient) -> None:
    assert (await http.post(PATH, json={"input": "a"})).json()["model"] == "embedder"
    completion = {"prompt": "a", "max_tokens": 1}
    assert (await http.post("/v1/completions", json=completion)).json()["model"] == "chat"


async def test_a_server_whose_models_rank_does_not_embed() -> None:
    models = ModelRegistry([embedding_model(FakeEngine(FAKE_RERANKER), "ranks")])
    async with client(create_api(models, OPTIONS).app) as http:
        error = error_of(await http.post(PATH, json={"input": "a"}))
    assert error["message"] == "The model 'ranks' cannot embed. No model of this server can."


async def test_tokens_can_be_asked_for(http: httpx.AsyncClient) -> None:
    body = (await http.post("/tokenize", json={"model": "e", "prompt": "hi"})).json()
    assert body == {"tokens": tokens_of("hi"), "count": 4, "max_model_len": LONGEST}
    text = (await http.post("/detokenize", json={"model": "e", "tokens": [106, 107]})).json()["content"]
    assert text == "hi"


async def test_a_model_that_loads_is_waited_for(served: Served, http: httpx.AsyncClient) -> None:
    served.embedder.told = msgspec.structs.replace(READY, state=READY.state.LOADING, loaded=0.4)
    answer = await embed(http, input="a")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_options_hold_for_what_embeds_too(served: Served) -> None:
    async with client(served.api(lenient=True, max_prompt_tokens=5).app) as http:
        answer = await embed(http, input="a", colour="red")
        assert (answer.status_code, answer.headers["x-ignored-parameters"]) == (200, "colour")
        assert error_of(await embed(http, input="abcd"))["code"] == "context_length_exceeded"
        cut = await embed(http, input="abcd", truncate=True)
    assert cut.json()["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(
    ("headers", "fields", "label"),
    [
        ({}, {}, "interactive"),
        ({"X-Priority": "batch"}, {"priority": "interactive"}, "batch"),
        ({}, {"service_tier": "flex"}, "batch"),
        ({}, {"priority": "batch", "user": "ann"}, "batch"),
    ],
)
async def test_priorities_reach_the_engine(
    served: Served, app: Starlette, headers: dict[str, str], fields: dict[str, object], label: str
) -> None:
    served.embedder.goes_on.clear()
    body = {"model": "e", "input": ["a", "b"], **fields}
    async with exchange(app, PATH, body, headers) as one:
        await eventually(lambda: num_live(served.embedder) == 1)
        (live,) = served.embedder.requests()
        assert live.priority.label == label
        assert live.id.startswith("embd-")
        assert live.prompt_tokens == 6
        assert ("user:ann" in live.client) == ("user" in fields)
        async with client(app) as http:
            assert (await http.delete(f"/v1/requests/{live.id}")).status_code == 200
        assert b"request_cancelled" in (await one.chunk() or b"")
    assert one.status == 499
    assert num_live(served.embedder) == 0


async def test_a_call_that_takes_too_long_is_408(served: Served, http: httpx.AsyncClient) -> None:
    served.embedder.goes_on.clear()
    answer = await embed(http, input="a", timeout=0.05)
    assert (answer.status_code, error_of(answer)["code"]) == (408, "request_timeout")
    assert num_live(served.embedder) == 0


async def test_tokens_count_against_a_key_but_for_calls_that_are_refused(tmp_path: Path) -> None:
    engine = FakeEngine(FAKE_EMBEDDER)
    keys = key_ring(tmp_path, ann="tokens_per_minute = 10")
    app = locked_api(engine, keys, models=ModelRegistry([embedding_model(engine, "e")]))
    async with client(app, of("ann")) as http:
        first = await http.post(PATH, json={"input": "abcde"})
        assert first.headers["x-ratelimit-remaining-tokens"] == "3"
        second = await http.post(PATH, json={"input": "abcde"})
        assert (second.status_code, error_of(second)["type"]) == (429, "tokens")
        engine.told = msgspec.structs.replace(READY, state=READY.state.RESTARTING)
        refused = await http.post(PATH, json={"input": "a"})
        assert (refused.status_code, refused.headers["x-ratelimit-remaining-tokens"]) == (503, "3")
        engine.told = READY
        assert (await http.post(PATH, json={"input": "a"})).status_code == 200


async def test_rows_of_a_batch_embed_with_its_priority(served: Served) -> None:
    run_row = served.api().run_row
    served.embedder.goes_on.clear()
    body = json.dumps({"input": "hi", "model": "e", "priority": "interactive"}).encode()
    running = asyncio.create_task(run_row(PATH, body, ""))
    await eventually(lambda: num_live(served.embedder) == 1)
    assert served.embedder.requests()[0].priority.label == "batch"
    served.embedder.goes_on.set()
    answer = await running
    assert (answer.status, json.loads(answer.body)["data"][0]["embedding"]) == (200, unit(tokens_of("hi")))
    refused = await run_row(PATH, json.dumps({"input": "", "model": "e"}).encode(), "")
    assert (refused.status, json.loads(refused.body)["error"]["param"]) == (400, "input")


async def test_inputs_and_tokens_are_counted(app: Starlette) -> None:
    async with client(app) as http:
        await embed(http, input=["a", "bc"])
        await embed(http, input="x", service_tier="flex")
        await embed(http, input="")
        now = await page(http)
    assert now.sum("ocs_embedded_inputs_total", priority="interactive") == 2
    assert now.sum("ocs_embedded_tokens_total", priority="interactive") == 7
    assert now.sum("ocs_embedded_inputs_total", priority="batch") == 1
    assert now.sum("ocs_prompt_tokens_total") == 0
    assert now.sum("ocs_requests_total", route=PATH, status="200") == 2
    assert now.sum("ocs_request_seconds_count", route=PATH) == 2


async def test_a_model_without_special_tokens_takes_any_of_its_ids_but_needs_some() -> None:
    tokenizer = FakeTokenizer(adds_bos=False)
    models = ModelRegistry([embedding_model(FakeEngine(FAKE_EMBEDDER), "e", tokenizer=tokenizer)])
    async with client(create_api(models, OPTIONS).app) as http:
        assert (await http.post(PATH, json={"input": [5, 6]})).status_code == 200
        error = error_of(await http.post(PATH, json={"input": [5, 600]}))
    assert error["code"] == "foreign_token_ids"


# -- vectors as bytes of an answer: nothing of a float32 is lost ---------------------------------------------


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-38, 1e-45, 3.4e38, 1 / 3, 0.1, 123456789.0, 5e-7, 9.9999999e-1]


def random_rows() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    generator = np.random.default_rng(7)
    exponents = generator.integers(-12, 4, (200, 16))
    return (generator.standard_normal((200, 16)) * 10.0**exponents).astype(np.float32)


@pytest.mark.parametrize("rows", [np.array([SPECIAL], np.float32), random_rows()])
def test_json_numbers_mean_the_same_float32(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    read = np.array([json.loads(text) for text in as_numbers(rows)], np.float32)
    small = np.abs(rows) < 1e-13  # these have more decimals than are written
    assert (read[~small] == rows[~small]).all()
    assert np.abs(read[small] - rows[small]).max(initial=0) < 1e-22


def test_numbers_are_short_and_base64_is_little_endian() -> None:
    (numbers,) = as_numbers(np.array([[0.1, 1 / 3, -0.053710941]], np.float32))
    (packed,) = as_base64(np.array([[1.5, -2.0]], np.float32))
    assert (numbers, packed) == (b"[0.100000001,0.333333343,-0.0537109412]", b'"AADAPwAAAMA="')


def test_rows_get_length_one_but_zeros_stay() -> None:
    unit = normalised(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    assert unit.dtype == np.float32
    assert unit.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(wrong: float) -> None:
    with pytest.raises(GenerationFailed):
        checked(np.array([[1.0, wrong]], np.float32))
