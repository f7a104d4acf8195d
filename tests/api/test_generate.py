"""The older server's routes: what is sent, what comes back, and that they are the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, api, client, locked_api, num_live
from tests.api.talking import chat, complete, error_of, events
from tests.reading import model_read_here
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


async def generate(http: httpx.AsyncClient, path: str = "/generate", **fields: object) -> httpx.Response:
    return await http.post(
        path, json={"prompt": "hi", "max_tokens": 8, "seed": 1, "temperature": 0, **fields}
    )


async def batch(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/v1/generate/batch", json={"temperature": 0, "seed": 1, **fields})


@pytest.mark.parametrize("path", ["/generate", "/v1/generate"])
async def test_a_prompt_is_what_a_user_says(http: httpx.AsyncClient, path: str) -> None:
    body, as_chat = (await generate(http, path)).json(), (await chat(http)).json()
    assert body["text"] == as_chat["choices"][0]["message"]["content"]
    assert (body["model"], body["structured_data"], body["finish_reason"]) == ("fake", None, "length")
    assert body["id"].startswith("gen-")
    metrics = body["metrics"]
    assert {name: metrics[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        name: as_chat["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    assert metrics["latency_ms"] >= metrics["ttft_ms"] >= metrics["queue_ms"] >= 0
    assert set(metrics) >= {"cached_tokens", "tokens_per_second"}


async def test_a_raw_prompt_is_a_text_to_continue(http: httpx.AsyncClient) -> None:
    body, as_text = (await generate(http, raw=True)).json(), (await complete(http)).json()
    assert body["text"] == as_text["choices"][0]["text"]
    assert body["metrics"]["prompt_tokens"] == as_text["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "fields", [{"format": "json"}, {"format": "json", "json_schema": SCHEMA}, {"json_schema": SCHEMA}]
)
async def test_json_comes_as_data_too(fields: Json) -> None:
    said = '{"a": 12345678901234567890123}'
    async with client(api(FakeEngine(says=said))) as http:
        body = (await generate(http, **fields, max_tokens=100)).json()
    assert (body["text"], body["structured_data"]) == (said, {"a": 12345678901234567890123})


@pytest.mark.parametrize(("said", "form", "text"), [('{"a": 1}', "json", '{"a"'), ("[1]", "text", "[1]")])
async def test_json_that_was_cut_and_text_that_looks_like_it_are_no_data(
    said: str, form: str, text: str
) -> None:
    async with client(api(FakeEngine(says=said))) as http:
        body = (await generate(http, format=form, max_tokens=4)).json()
    assert (body["text"], body["structured_data"]) == (text, None)


async def test_a_stream_is_texts_and_then_the_numbers() -> None:
    async with client(api(FakeEngine(says='{"a": 1}'))) as http:
        whole = (await generate(http, format="json", max_tokens=20)).json()
        response = await generate(http, format="json", max_tokens=20, stream=True)
    *deltas, last = events(response)
    assert "".join(str(delta["text"]) for delta in deltas) == whole["text"]
    assert all(set(delta) == {"text"} for delta in deltas)
    assert (last["text"], last["structured_data"], last["finish_reason"]) == ("", {"a": 1}, "stop")
    assert set(last["metrics"]) == set(whole["metrics"])  # type: ignore[call-overload]
    assert "[DONE]" not in response.text


@pytest.mark.parametrize(
    ("name", "priority"),
    [("high", "interactive"), ("normal", "interactive"), ("low", "batch"), ("batch", "batch")],
)
async def test_priorities_go_by_old_names_too(engine: FakeEngine, name: str, priority: str) -> None:
    engine.goes_on.clear()
    async with exchange(api(engine), "/generate", {"prompt": "a", "priority": name}) as one:
        await eventually(lambda: num_live(engine) == 1)
        assert engine.requests()[0].priority.label == priority
        one.disconnect()


async def test_several_prompts_are_answered_in_their_order(http: httpx.AsyncClient) -> None:
    prompts = [f"number {index}" for index in range(100)]
    body = (await batch(http, prompts=prompts, max_tokens=4)).json()
    alone = (await generate(http, prompt="number 70", max_tokens=4)).json()
    assert (len(body["results"]), body["succeeded"], body["failed"]) == (100, 100, 0)
    assert body["results"][70]["text"] == alone["text"]
    assert (body["results"][70]["status"], body["results"][70]["error"]) == (200, None)
    assert len({result["id"] for result in body["results"]}) == 100


async def test_one_that_fails_fails_alone(http: httpx.AsyncClient) -> None:
    requests = [
        {"prompt": "a"},
        {"prompt": "b", "temperature": "hot"},
        {"prompt": "c", "model": "gpt-4o"},
        {"prompt": "d", "stream": True},
        {"prompt": "e", "max_tokens": 2},
        {},
    ]
    body = (await batch(http, requests=requests, max_tokens=5)).json()
    results = body["results"]
    assert [result["status"] for result in results] == [200, 400, 404, 400, 200, 400]
    params = [result["error"]["param"] for result in results if result["error"]]
    assert params == ["temperature", "model", "stream", "prompt"]
    assert [results[index]["metrics"]["completion_tokens"] for index in (0, 4)] == [5, 2]
    assert (body["succeeded"], body["failed"]) == (2, 4)


async def test_what_requests_share_cannot_make_much_of_little(engine: FakeEngine) -> None:
    async with client(api(engine, msgspec.structs.replace(OPTIONS, max_body_bytes=100_000))) as http:
        response = await batch(http, prompts=["a"] * 1000, user="x" * 200)
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")


async def test_a_batch_ends_when_its_client_leaves(engine: FakeEngine) -> None:
    engine.goes_on.clear()
    async with exchange(api(engine), "/v1/generate/batch", {"prompts": ["a"] * 200}) as one:
        await eventually(lambda: num_live(engine) == 64)
        one.disconnect()
    assert num_live(engine) == 0


async def test_requests_of_a_batch_count_against_a_keys_limits(engine: FakeEngine, tmp_path: Path) -> None:
    app = locked_api(engine, key_ring(tmp_path, ann="requests_per_minute = 3", bob="concurrent = 2"))
    async with client(app, of("ann")) as http:
        body = (await batch(http, prompts=["a"] * 5, max_tokens=2)).json()
        assert sorted(result["status"] for result in body["results"]) == [200] * 3 + [429] * 2
        assert (await generate(http)).status_code == 429
    async with client(app, of("bob")) as http:
        assert (await batch(http, prompts=["a"] * 9, max_tokens=2)).json()["succeeded"] == 9


async def test_the_model_is_described(http: httpx.AsyncClient) -> None:
    card = (await http.get("/v1/model/info")).json()
    assert card == (await http.get("/v1/models/fake")).json()
    assert (await http.get("/v1/model/info", params={"model": "team/fake"})).json()["id"] == "team/fake"
    assert (await http.get("/v1/model/info", params={"model": "gpt-4o"})).status_code == 404


async def test_a_model_that_cannot_chat_continues_the_prompt(engine: FakeEngine) -> None:
    plain = model_read_here(names=("plain",), engine=engine, tool_format=TOOL_FORMATS["generic"])
    async with client(create_api(ModelRegistry([plain]), OPTIONS).app) as http:
        body, raw = (await generate(http)).json(), (await generate(http, raw=True)).json()
    assert body["text"] == raw["text"] != ""
