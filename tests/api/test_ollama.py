"""Ollama's routes: what its clients send, and the lines that they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.offload import Placement
from openai_cpu_server.models.presets import Preset
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.captures import captured
from tests.api.fake_engine import READY, FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, api, client, embedding_model, served
from tests.api.talking import chat, complete
from tests.fakes import FAKE_EMBEDDER

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
COUNTS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count"}


async def talk(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/api/chat", json={"model": "fake", "messages": HI, "options": FIXED, **fields})


async def generate(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"model": "fake", "prompt": "hi", "options": FIXED, "stream": False, **fields}
    return await http.post("/api/generate", json=body)


def lines(response: httpx.Response) -> list[Json]:
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


async def test_an_answer_streams_unless_it_is_told_not_to(http: httpx.AsyncClient) -> None:
    whole, told = (await talk(http, stream=False)).json(), lines(await talk(http))
    expected = (await chat(http)).json()["choices"][0]["message"]["content"]
    assert whole["message"] == {"role": "assistant", "content": expected}
    assert "".join(line["message"]["content"] for line in told) == expected
    assert [line["done"] for line in told] == [False] * (len(told) - 1) + [True]
    for last in (whole, told[-1]):
        assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 8)
        assert last.keys() >= COUNTS
        parts = [last[name] for name in ("load_duration", "prompt_eval_duration", "eval_duration")]
        assert last["total_duration"] == pytest.approx(sum(parts), abs=3)
        assert min(parts) >= 0


async def test_a_prompt_is_said_or_raw_or_has_a_system(http: httpx.AsyncClient) -> None:
    said, raw = (await generate(http)).json(), (await generate(http, raw=True)).json()
    assert said["response"] == (await chat(http)).json()["choices"][0]["message"]["content"]
    assert raw["response"] == (await complete(http)).json()["choices"][0]["text"]
    under_system = (await generate(http, system="be brief")).json()
    conversation = [{"role": "system", "content": "be brief"}, *HI]
    as_chat = (await talk(http, messages=conversation, stream=False)).json()
    assert under_system["prompt_eval_count"] == as_chat["prompt_eval_count"]
    assert "".join(line["response"] for line in lines(await generate(http, stream=True))) == said["response"]


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_of_tools_come_whole_with_their_arguments_as_an_object(stream: bool) -> None:
    async with client(api(FakeEngine(says=CALL))) as http:
        response = await talk(http, tools=[WEATHER], options={"num_predict": 200}, stream=stream)
    told = lines(response) if stream else [response.json()]
    calls = [call for line in told for call in line["message"].get("tool_calls", ())]
    (call,) = calls
    assert call["id"].startswith("call_")
    assert call["function"] == {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}
    assert told[-1]["done_reason"] == "stop"


@pytest.mark.parametrize("form", ["json", {"type": "object", "properties": {"a": {"type": "integer"}}}])
async def test_formats_are_enforced(form: object) -> None:
    async with client(api(FakeEngine(says='{"a": 1}'))) as http:
        answer = (await talk(http, format=form, options={"num_predict": 50}, stream=False)).json()
    assert json.loads(answer["message"]["content"]) == {"a": 1}


TEMPLATE = "{{ if .System }}[{{ .System }}] {{ end }}<{{ .Prompt }}>{{ .Response }} and no more"


async def test_a_template_writes_the_prompt(http: httpx.AsyncClient) -> None:
    answer = (await generate(http, system="be brief", template=TEMPLATE)).json()
    raw = (await generate(http, prompt="[be brief] <hi>", raw=True)).json()
    assert (answer["response"], answer["prompt_eval_count"]) == (raw["response"], raw["prompt_eval_count"])
    assert raw["prompt_eval_count"] != (await generate(http, system="be brief")).json()["prompt_eval_count"]
    filled = (await generate(http, suffix="!", template="{{ .Prompt }}|{{ .Suffix }}|")).json()
    assert filled["response"] == (await generate(http, prompt="hi|!|", raw=True)).json()["response"]


async def test_a_name_may_have_a_template_of_its_own() -> None:
    registry = served(FakeEngine())
    registry.derive("made", Preset(base="fake", system="be brief", template=TEMPLATE))
    async with client(create_api(registry, OPTIONS).app) as http:
        raw = (await generate(http, prompt="[be brief] <hi>", raw=True)).json()
        chatted = (await talk(http, model="made", stream=False)).json()
        assert chatted["message"]["content"] == raw["response"]
        assert chatted["prompt_eval_count"] == raw["prompt_eval_count"]
        assert (await generate(http, model="made")).json()["response"] == raw["response"]
        assert lines(await talk(http, model="made"))[-1]["prompt_eval_count"] == raw["prompt_eval_count"]
        completion = (await chat(http, model="made")).json()
        assert completion["usage"]["prompt_tokens"] == raw["prompt_eval_count"]
        body = {"model": "made", "messages": HI, "max_tokens": 1}
        counted = (await http.post("/v1/messages/count_tokens", json=body)).json()
        assert counted == {"input_tokens": raw["prompt_eval_count"]}
        long = [{"role": role, "content": "word " * 40} for role in ("user", "assistant")] * 40
        kept = (await talk(http, model="made", messages=[*long, *HI], stream=False)).json()
        assert kept["prompt_eval_count"] > raw["prompt_eval_count"], "the oldest are left out, not all"
        refused = await talk(http, model="made", messages=[*long, *HI], truncate=False)
        assert refused.status_code == 400
        shown = (await http.post("/api/show", json={"model": "made"})).json()
        assert (shown["template"], f'TEMPLATE """{TEMPLATE}"""' in shown["modelfile"]) == (TEMPLATE, True)
        for more in ({"tools": [WEATHER]}, {"messages": [HI[0] | {"images": ["aGk="]}]}):
            assert (await talk(http, model="made", **more)).status_code == 400


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_goes_on_from_the_context_of_an_answer(http: httpx.AsyncClient, stream: bool) -> None:
    answer = await generate(http, stream=stream)
    first = lines(answer)[-1] if stream else answer.json()
    context = first["context"]
    assert len(context) == first["prompt_eval_count"] + first["eval_count"]
    said = (await generate(http, prompt="and?")).json()["prompt_eval_count"]
    for system in (None, "be brief"):
        again = (await generate(http, prompt="and?", context=context, system=system)).json()
        assert again["context"][: len(context)] == context
        # The text's first token is there already.
        least = len(context) + said - 1
        assert (again["prompt_eval_count"] == least) is (system is None)
        assert again["prompt_eval_count"] >= least
    assert "context" not in (await generate(http, raw=True)).json()
    assert "context" not in (await talk(http, stream=False)).json()


@pytest.mark.parametrize("ask", [talk, generate])
async def test_log_probabilities_stand_beside_the_text(http: httpx.AsyncClient, ask: Any) -> None:
    whole = (await ask(http, stream=False, logprobs=True, top_logprobs=2)).json()
    told = lines(await ask(http, stream=True, logprobs=True, top_logprobs=2))
    assert [one for line in told for one in line.get("logprobs", ())] == whole["logprobs"]
    assert len(whole["logprobs"]) == 8
    assert {*whole["logprobs"][0]} == {"token", "logprob", "bytes", "top_logprobs"}
    assert "logprobs" not in (await ask(http, stream=False, top_logprobs=2)).json()


async def test_what_is_for_ollamas_runner_is_ignored_and_named(http: httpx.AsyncClient) -> None:
    response = await talk(http, options={**FIXED, "num_ctx": 8192}, keep_alive="5m", stream=False)
    assert response.headers["x-ignored-parameters"] == "options.num_ctx,keep_alive"


@pytest.mark.parametrize("name", captured("ollama_clients"))
async def test_bodies_of_clients_are_answered(http: httpx.AsyncClient, name: str) -> None:
    sent = captured("ollama_clients")[name]
    response = await http.post(sent["path"], json={"model": "fake", **sent["body"]})
    assert response.status_code == 200, response.text
    assert lines(response)[-1]["done"]
    assert "result without a call" not in response.headers.get("x-ignored-parameters", "")


@pytest.mark.parametrize(("path", "field"), [("/api/chat", "message"), ("/api/generate", "response")])
async def test_an_empty_call_loads(
    engine: FakeEngine, http: httpx.AsyncClient, path: str, field: str
) -> None:
    answer = (await http.post(path, json={"model": "fake"})).json()
    assert (answer["done"], answer["done_reason"], field in answer) == (True, "load", True)
    engine.told = msgspec.structs.replace(READY, state=EngineState.FAILED, reason="the file is damaged")
    failed = await http.post(path, json={"model": "fake"})
    assert (failed.status_code, "the file is damaged" in failed.json()["error"]) == (503, True)


@pytest.mark.parametrize(("name", "status"), [("ann", 403), ("root", 400)])
async def test_unloading_is_for_administrators(tmp_path: Path, name: str, status: int) -> None:
    """This server's models stay, so one who may unload is told that."""
    keys = key_ring(tmp_path, ann="", root='scopes = ["inference", "admin"]')
    async with client(create_api(served(FakeEngine()), OPTIONS, keys=keys).app) as http:
        body = {"model": "fake", "messages": [], "keep_alive": "0s"}
        assert (await http.post("/api/chat", json=body, headers=of(name))).status_code == status


async def test_what_lies_on_a_device_counts_for_ollama_ps() -> None:
    """Its clients show the share of it."""
    placed = msgspec.structs.replace(
        Placement.nowhere("a test"), weights_bytes=500, cells_bytes=40, compute_bytes=3
    )
    told = msgspec.structs.replace(READY, engine_rss_bytes=1000, placement=placed, draft_placement=placed)
    async with client(api(FakeEngine(told=told))) as http:
        (running,) = (await http.get("/api/ps")).json()["models"]
    assert (running["size_vram"], running["size"]) == (2 * 543, 1000 + 2 * 543)


async def test_models_are_listed_and_shown(http: httpx.AsyncClient) -> None:
    tags = (await http.get("/api/tags")).json()["models"]
    assert [model["name"] for model in tags] == ["fake", "team/fake"]
    assert tags[0].keys() >= {"model", "modified_at", "size", "digest", "details"}
    assert len((await http.get("/api/ps")).json()["models"]) == 1
    shown = (await http.post("/api/show", json={"model": "fake:latest"})).json()
    assert shown["capabilities"][0] == "completion"
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] > 0
    assert (await http.get("/api/version")).json()["version"].count(".") == 2


@pytest.mark.parametrize("page", [True, False])
async def test_whoever_asks_is_told_that_somebody_is_there(engine: FakeEngine, page: bool) -> None:
    async with client(api(engine, msgspec.structs.replace(OPTIONS, page=page))) as http:
        assert (await http.head("/")).status_code == 200
        assert (await http.get("/")).status_code == (200 if page else 404)


async def test_a_name_without_a_tag_is_the_latest(http: httpx.AsyncClient) -> None:
    assert (await talk(http, model="team/fake:latest", stream=False)).json()["model"] == "team/fake"
    assert (await talk(http, model="fake:7b")).status_code == 404


async def test_texts_become_vectors() -> None:
    model = embedding_model(FakeEngine(FAKE_EMBEDDER), "fake")
    async with client(create_api(ModelRegistry([model]), OPTIONS).app) as http:
        many = (await http.post("/api/embed", json={"model": "fake", "input": ["a", "b"]})).json()
        one = (await http.post("/api/embeddings", json={"model": "fake", "prompt": "a"})).json()
        wrong = await http.post("/api/embed", json={"model": "fake", "input": ["a", 3]})
        shown = (await http.post("/api/show", json={"model": "fake"})).json()
    assert len(many["embeddings"]) == 2
    assert sum(number**2 for number in many["embeddings"][0]) == pytest.approx(1)
    assert (many["prompt_eval_count"] > 0, many["total_duration"] > 0) == (True, True)
    assert len(one["embedding"]) == len(many["embeddings"][0])
    assert (wrong.status_code, wrong.json().keys()) == (400, {"error"})
    assert shown["capabilities"] == ["embedding"]
