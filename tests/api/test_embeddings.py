"""`POST /v1/embeddings` and its vectors as JSON. More cases are in `exchanges/embeddings.txt`."""

from __future__ import annotations

import asyncio
import json

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import ServedApplication, create_api
from openai_cpu_server.api.pooling.render import as_base64, as_numbers, checked, normalised
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import OPTIONS, client, embedding_model, num_live
from tests.api.talking import error_of
from tests.api.watching import page
from tests.fakes import FAKE_EMBEDDER
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

PATH = "/v1/embeddings"


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine(FAKE_EMBEDDER)


@pytest.fixture
def api(engine: FakeEngine) -> ServedApplication:
    return create_api(ModelRegistry([embedding_model(engine, "e")]), OPTIONS)


@pytest.fixture
def app(api: ServedApplication) -> Starlette:
    return api.app


async def test_the_most_inputs_that_openai_takes_keep_their_order(http: httpx.AsyncClient) -> None:
    body = (await http.post(PATH, json={"input": ["x"] * 2048})).json()
    assert [item["index"] for item in body["data"]] == list(range(2048))
    assert body["usage"]["prompt_tokens"] == 3 * 2048


async def test_rows_of_a_batch_embed_with_its_priority(api: ServedApplication, engine: FakeEngine) -> None:
    engine.goes_on.clear()
    running = asyncio.create_task(api.run_row(PATH, b'{"input": "hi", "priority": "interactive"}', ""))
    await eventually(lambda: num_live(engine) == 1)
    assert engine.requests()[0].priority.label == "batch"
    engine.goes_on.set()
    answer = await running
    assert (answer.status, len(json.loads(answer.body)["data"])) == (200, 1)
    refused = await api.run_row(PATH, b'{"input": ""}', "")
    assert (refused.status, json.loads(refused.body)["error"]["param"]) == (400, "input")


async def test_inputs_and_tokens_are_counted(http: httpx.AsyncClient) -> None:
    for fields in ({"input": ["a", "bc"]}, {"input": "x", "service_tier": "flex"}, {"input": ""}):
        await http.post(PATH, json=fields)
    now = await page(http)
    assert now.sum("ocs_embedded_inputs_total", priority="interactive") == 2
    assert now.sum("ocs_embedded_tokens_total", priority="interactive") == 7
    assert now.sum("ocs_embedded_inputs_total", priority="batch") == 1
    assert now.sum("ocs_prompt_tokens_total") == 0
    assert now.sum("ocs_requests_total", route=PATH, status="200") == 2
    assert now.sum("ocs_request_seconds_count", route=PATH) == 2


async def test_a_model_without_special_tokens_takes_ids_of_its_own_tokenizer() -> None:
    tokenizer = FakeTokenizer(adds_bos=False)
    models = ModelRegistry([embedding_model(FakeEngine(FAKE_EMBEDDER), "e", tokenizer=tokenizer)])
    async with client(create_api(models, OPTIONS).app) as http:
        assert (await http.post(PATH, json={"input": [5, 6]})).status_code == 200
        foreign = [error_of(await http.post(PATH, json={"input": [[5], [6, other]]})) for other in (600, 300)]
    for error in foreign:
        assert (error["code"], error["param"]) == ("foreign_token_ids", "input[1]")
        assert "check_embedding_ctx_length=False" in error["message"]


# -- vectors as JSON, without loss of a float32 --------------------------------------------------------------


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


def test_rows_are_normalised_but_zeros_stay() -> None:
    unit = normalised(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    assert unit.dtype == np.float32
    assert unit.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_vector_with_nan_or_infinity_is_refused(wrong: float) -> None:
    with pytest.raises(GenerationFailed):
        checked(np.array([[1.0, wrong]], np.float32))
