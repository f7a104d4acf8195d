"""The older server's routes, beside what `exchanges/generate.txt` has."""

from __future__ import annotations

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api, client, num_live
from tests.reading import model_read_here
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def generate(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/generate", json={"prompt": "hi", "max_tokens": 8, "temperature": 0, **fields})


async def batch(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/v1/generate/batch", json={"temperature": 0, "seed": 1, **fields})


async def test_several_prompts_are_answered_in_their_order(http: httpx.AsyncClient) -> None:
    prompts = [f"number {index}" for index in range(100)]
    body = (await batch(http, prompts=prompts, max_tokens=4)).json()
    alone = (await generate(http, prompt="number 70", max_tokens=4)).json()
    assert (len(body["results"]), body["succeeded"], body["failed"]) == (100, 100, 0)
    assert body["results"][70]["text"] == alone["text"]
    assert (body["results"][70]["status"], body["results"][70]["error"]) == (200, None)
    assert len({result["id"] for result in body["results"]}) == 100


async def test_a_batch_ends_when_its_client_leaves(engine: FakeEngine) -> None:
    engine.goes_on.clear()
    async with exchange(api(engine), "/v1/generate/batch", {"prompts": ["a"] * 200}) as one:
        await eventually(lambda: num_live(engine) == 64)
        one.disconnect()
    assert num_live(engine) == 0


async def test_a_model_that_cannot_chat_continues_the_prompt(engine: FakeEngine) -> None:
    plain = model_read_here(names=("plain",), engine=engine, tool_format=TOOL_FORMATS["generic"])
    async with client(create_api(ModelRegistry([plain]), OPTIONS).app) as http:
        body, raw = (await generate(http)).json(), (await generate(http, raw=True)).json()
    assert body["text"] == raw["text"] != ""
