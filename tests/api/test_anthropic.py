"""`/v1/messages` over HTTP: answers, streams, counting, and errors in Anthropic's shape from wherever."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import msgspec
import pytest

from openai_cpu_server.contract.engine import EngineState
from tests.api.asgi import exchange
from tests.api.captures import captured
from tests.api.fake_engine import READY, FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, api, client, locked_api, new_engine, num_live, running
from tests.api.talking import MESSAGES, chat, messages_error_of
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

TOOL = {"name": "now", "input_schema": {"type": "object", "properties": {}}}


async def ask(http: httpx.AsyncClient, path: str = "/v1/messages", **fields: object) -> httpx.Response:
    body = {"model": "fake", "messages": MESSAGES, "max_tokens": 8, "temperature": 0, **fields}
    return await http.post(path, json={name: value for name, value in body.items() if value is not None})


def heard(response: httpx.Response) -> list[dict[str, object]]:
    """The events, whose names are their types."""
    events = []
    for event in response.text.strip().split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_an_answer(http: httpx.AsyncClient) -> None:
    answer = await ask(http)
    body = answer.json()
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert body.pop("id").startswith("msg_")
    assert body.pop("content")[0]["text"] == (await chat(http)).json()["choices"][0]["message"]["content"]
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 8,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


async def test_a_stream_says_what_the_whole_answer_says(http: httpx.AsyncClient) -> None:
    whole, stream = (await ask(http)).json(), await ask(http, stream=True)
    assert stream.headers["content-type"].startswith("text/event-stream")
    first, start, *deltas, stop, last, end = heard(stream)
    assert (first["type"], start["type"], stop["type"], end) == (
        "message_start",
        "content_block_start",
        "content_block_stop",
        {"type": "message_stop"},
    )
    text = "".join(event["delta"]["text"] for event in deltas)  # type: ignore[index]
    assert text == whole["content"][0]["text"]
    assert last["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert last["usage"] == whole["usage"]


async def test_a_large_limit_is_what_the_context_or_the_server_leaves() -> None:
    engine = FakeEngine(says="Hello there.")
    async with client(api(engine)) as http:
        long = [{"role": "user", "content": "x" * 4090}]
        answers = [
            await ask(http, max_tokens=64000),
            await ask(http, max_tokens=64000, messages=long),
            await ask(http, max_tokens=3, messages=long),
        ]
    async with client(api(engine, msgspec.structs.replace(OPTIONS, max_output_tokens=4))) as http:
        answers.append(await ask(http, max_tokens=64000))
    reasons = [answer.json()["stop_reason"] for answer in answers]
    assert reasons == ["end_turn", "model_context_window_exceeded", "max_tokens", "max_tokens"]
    assert answers[-1].json()["usage"]["output_tokens"] == 4


async def test_an_answer_goes_on_where_the_last_message_ends(http: httpx.AsyncClient) -> None:
    asked = [{"role": "user", "content": "Say something."}]
    whole = (await ask(http, messages=asked)).json()["content"][0]["text"]
    assert whole.isascii()
    begun = [*asked, {"role": "assistant", "content": whole[:2]}]
    rest = (await ask(http, messages=begun, max_tokens=6)).json()["content"][0]["text"]
    assert whole == whole[:2] + rest


async def test_a_prompt_of_claude_code_is_found_again_whatever_its_billing_line() -> None:
    usages = []
    async with running(new_engine(cache_bytes=100_000)) as engine, client(api(engine)) as http:
        for number in ("fa690", "0aaa9"):
            lines = (f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cch={number};", "Help. " * 50)
            answer = await ask(http, system=[{"type": "text", "text": line} for line in lines])
            usages.append(answer.json()["usage"])
    first, second = usages
    assert first["cache_read_input_tokens"] == 0
    assert second["input_tokens"] == 1
    assert second["cache_read_input_tokens"] == first["input_tokens"] - 1


async def test_counting_counts_what_asking_uses(engine: FakeEngine, http: httpx.AsyncClient) -> None:
    """Also without an engine, and in the client's words where something is wrong."""
    asked = (await ask(http, tools=[TOOL])).json()["usage"]["input_tokens"]
    engine.told = msgspec.structs.replace(READY, state=EngineState.RESTARTING)
    path = "/v1/messages/count_tokens"
    counted = await ask(http, path, tools=[TOOL], max_tokens=None)
    assert counted.json() == {"input_tokens": asked}
    of_chat = await http.post("/v1/chat/completions/input_tokens", json={"messages": MESSAGES})
    assert of_chat.json() == {"object": "response.input_tokens", "input_tokens": 5}
    wrong = await ask(http, path, max_tokens=None, tools=[TOOL, TOOL])
    assert wrong.json()["error"]["message"].startswith("tools[1].name: ")


@pytest.mark.parametrize("query", ["", "?beta=true"])
async def test_a_request_of_claude_code(http: httpx.AsyncClient, query: str) -> None:
    """The first of a conversation."""
    body = captured("claude_code")
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
    }
    body |= {"model": "fake", "messages": body["messages"][:1]}
    answer = await http.post(f"/v1/messages{query}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert heard(answer)[-1] == {"type": "message_stop"}
    ignored = answer.headers["x-ignored-parameters"].split(",")
    assert {"context_management", "tools[1] (web_search_20250305)"} <= set(ignored)


# -- what goes wrong -----------------------------------------------------------------------------------


async def test_wishes_about_thoughts_are_named_as_the_client_has_written_them(
    http: httpx.AsyncClient,
) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    answer = await ask(http, thinking=thinking, output_config={"effort": "low"}, cache=False)
    assert answer.headers["x-ignored-parameters"] == "output_config.effort,thinking.budget_tokens"


async def test_other_models_paths_and_methods(http: httpx.AsyncClient) -> None:
    for wrong, status, kind in (
        (await ask(http, model="claude-sonnet-4-5"), 404, "not_found_error"),
        (await http.post("/v1/messages/batches", json={}), 404, "not_found_error"),
        (await http.get("/v1/messages"), 405, "invalid_request_error"),
    ):
        assert (wrong.status_code, messages_error_of(wrong)["type"]) == (status, kind)
    assert "request-id" not in (await http.get("/v1/models")).headers


async def test_an_engine_that_is_away_is_overloaded(engine: FakeEngine, http: httpx.AsyncClient) -> None:
    engine.told = msgspec.structs.replace(READY, state=EngineState.RESTARTING)
    answer = await ask(http)
    assert (answer.status_code, messages_error_of(answer)["type"]) == (503, "overloaded_error")
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_stream_that_fails_says_so(engine: FakeEngine) -> None:
    engine.goes_on.clear()
    body = {"messages": MESSAGES, "max_tokens": 4000, "stream": True}
    async with exchange(api(engine), "/v1/messages", body) as one:
        await eventually(lambda: num_live(engine) == 1)
        engine.cancel(engine.requests()[0].id)
        first, *_, last = await one.rest()
    assert first.startswith(b"event: message_start\n")
    assert last.startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":')


async def test_a_silent_stream_is_pinged(engine: FakeEngine) -> None:
    engine.goes_on.clear()
    app = api(engine, msgspec.structs.replace(OPTIONS, keep_alive_s=0.01))
    body = {"messages": MESSAGES, "max_tokens": 4, "stream": True}
    async with exchange(app, "/v1/messages", body) as one:
        await one.chunk()
        pings = [await one.chunk() for _ in range(3)]
        engine.goes_on.set()
        await one.rest()
    assert pings == [b'event: ping\ndata: {"type":"ping"}\n\n'] * 3


async def test_what_the_gates_refuse_has_the_same_shape(engine: FakeEngine, tmp_path: Path) -> None:
    keys = key_ring(tmp_path, ann="requests_per_minute = 1", eve='scopes = ["metrics"]')
    app = locked_api(engine, keys, options=msgspec.structs.replace(OPTIONS, max_body_bytes=1000))
    async with client(app, of("ann")) as http:
        first, limited = await ask(http), await ask(http)
        assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        assert int(limited.headers["retry-after"]) >= 1
        for refused, status, kind in (
            (limited, 429, "rate_limit_error"),
            (await http.post("/v1/messages/count_tokens", content=b"x" * 1001), 413, "request_too_large"),
            (await http.post("/v1/messages", json={}, headers=of("wrong")), 401, "authentication_error"),
            (await http.post("/v1/messages", json={}, headers=of("eve")), 403, "permission_error"),
        ):
            assert (refused.status_code, messages_error_of(refused)["type"]) == (status, kind)
