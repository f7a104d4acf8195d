"""Ollama's routes, apart from the cases in `exchanges/ollama.txt`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.offload import DevicePlacement
from openai_cpu_server.models.registry import Preset
from tests.api.captures import captured
from tests.api.fake_engine import READY, FakeEngine
from tests.api.serving import OPTIONS, api, client, served
from tests.api.talking import chat

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
HI = [{"role": "user", "content": "hi"}]
FIXED = {"num_predict": 8, "seed": 1, "temperature": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells it.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<|tool_call|>{"name":"weather","arguments":{"city":"Rome"}}'


async def talk(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/api/chat", json={"model": "fake", "messages": HI, "options": FIXED, **fields})


async def generate(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"model": "fake", "prompt": "hi", "options": FIXED, "stream": False, **fields}
    return await http.post("/api/generate", json=body)


def lines(response: httpx.Response) -> list[Json]:
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


async def test_the_parts_of_a_duration_are_its_sum(http: httpx.AsyncClient) -> None:
    for last in ((await talk(http, stream=False)).json(), lines(await talk(http))[-1]):
        parts = [last[name] for name in ("load_duration", "prompt_eval_duration", "eval_duration")]
        assert last["total_duration"] == pytest.approx(sum(parts), abs=3)
        assert min(parts) >= 0


TEMPLATE = "{{ if .System }}[{{ .System }}] {{ end }}<{{ .Prompt }}>{{ .Response }} and no more"


async def test_a_name_may_have_a_template_of_its_own() -> None:
    registry = served(FakeEngine())
    registry.derive("made", Preset(base="fake", system="be brief", template=TEMPLATE))
    async with client(create_api(registry, OPTIONS).app) as http:
        raw = (await generate(http, prompt="[be brief] <hi>", raw=True)).json()
        chat_answer = (await talk(http, model="made", stream=False)).json()
        assert chat_answer["message"]["content"] == raw["response"]
        assert chat_answer["prompt_eval_count"] == raw["prompt_eval_count"]
        assert (await generate(http, model="made")).json()["response"] == raw["response"]
        assert lines(await talk(http, model="made"))[-1]["prompt_eval_count"] == raw["prompt_eval_count"]
        completion = (await chat(http, model="made")).json()
        assert completion["usage"]["prompt_tokens"] == raw["prompt_eval_count"]
        body = {"model": "made", "messages": HI, "max_tokens": 1}
        counted = (await http.post("/v1/messages/count_tokens", json=body)).json()
        assert counted == {"input_tokens": raw["prompt_eval_count"]}
        long = [{"role": role, "content": "word " * 40} for role in ("user", "assistant")] * 40
        shortened = (await talk(http, model="made", messages=[*long, *HI], stream=False)).json()
        assert shortened["prompt_eval_count"] > raw["prompt_eval_count"], "all messages are left out"
        refused = await talk(http, model="made", messages=[*long, *HI], truncate=False)
        assert refused.status_code == 400
        shown = (await http.post("/api/show", json={"model": "made"})).json()
        assert (shown["template"], f'TEMPLATE """{TEMPLATE}"""' in shown["modelfile"]) == (TEMPLATE, True)
        for more in ({"tools": [WEATHER]}, {"messages": [HI[0] | {"images": ["aGk="]}]}):
            assert (await talk(http, model="made", **more)).status_code == 400


@pytest.mark.parametrize("name", captured("ollama_clients"))
async def test_bodies_of_clients_are_answered(http: httpx.AsyncClient, name: str) -> None:
    request = captured("ollama_clients")[name]
    response = await http.post(request["path"], json={"model": "fake", **request["body"]})
    assert response.status_code == 200, response.text
    assert lines(response)[-1]["done"]
    assert "result without a call" not in response.headers.get("x-ignored-parameters", "")


async def test_memory_on_a_device_is_listed_by_ollama_ps() -> None:
    """Ollama's clients show the share of a model that is on a device."""
    usage = msgspec.structs.replace(
        DevicePlacement.nowhere("a test"), weights_bytes=500, cells_bytes=40, compute_bytes=3
    )
    status = msgspec.structs.replace(READY, engine_rss_bytes=1000, placement=usage, draft_placement=usage)
    async with client(api(FakeEngine(base_status=status))) as http:
        (running,) = (await http.get("/api/ps")).json()["models"]
    assert (running["size_vram"], running["size"]) == (2 * 543, 1000 + 2 * 543)


@pytest.mark.parametrize("page", [True, False])
async def test_the_root_answers_head_with_and_without_the_page(engine: FakeEngine, page: bool) -> None:
    async with client(api(engine, msgspec.structs.replace(OPTIONS, page=page))) as http:
        assert (await http.head("/")).status_code == 200
        assert (await http.get("/")).status_code == (200 if page else 404)
