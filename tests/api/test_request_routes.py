"""Live requests: listed, and ended by others than their clients."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from openai_cpu_server.engine_client.client import EngineClient
from tests.api.asgi import exchange
from tests.api.serving import api, client, eventually, new_engine, num_live, running
from tests.api.talking import MESSAGES, error_of

pytestmark = pytest.mark.anyio

LONG = {"prompt": "a", "ignore_eos": True}
CANCELLED = (
    b'{"error":{"message":"The request was cancelled on the server.","type":"server_error",'
    b'"param":null,"code":"request_cancelled"}}'
)


async def listed(http: httpx.AsyncClient) -> list[dict[str, object]]:
    body = (await http.get("/v1/requests")).json()
    assert body["object"] == "list"
    return list(body["data"])


async def test_live_requests_are_listed() -> None:
    async with running(new_engine("step_s=0.02", max_seqs=1)) as engine, client(api(engine)) as http:
        assert await listed(http) == []
        chat = {"messages": MESSAGES, "ignore_eos": True, "priority": "batch", "user": "ann"}
        async with exchange(api(engine), "/v1/completions", LONG) as first:
            await eventually(lambda: engine.status().running["interactive"] == 1)
            async with exchange(api(engine), "/v1/chat/completions", chat) as second:
                await eventually(lambda: engine.requests()[-1].position == 1)
                running_one, waiting_one = await listed(http)
                second.disconnect()
            first.disconnect()
    assert str(running_one.pop("id")).startswith("cmpl-")
    assert str(waiting_one.pop("id")).startswith("chatcmpl-")
    assert isinstance(running_one.pop("output_tokens"), int)
    for card in (running_one, waiting_one):
        assert isinstance(card.pop("age_s"), float)
    assert isinstance(waiting_one.pop("first_token_ms"), float)
    assert running_one == {
        "object": "request",
        "priority": "interactive",
        "state": "running",
        "prompt_tokens": 2,
        "client": "",
        "position": None,
        "first_token_ms": None,
        "inputs": None,
        "inputs_done": None,
    }
    assert waiting_one == {
        "object": "request",
        "priority": "batch",
        "state": "waiting",
        "prompt_tokens": 5,
        "output_tokens": 0,
        "client": "ann",
        "position": 1,
        "inputs": None,
        "inputs_done": None,
    }


async def test_a_cancelled_stream_ends_with_one_error(slow_engine: EngineClient) -> None:
    app = api(slow_engine)
    async with exchange(app, "/v1/completions", {**LONG, "n": 2, "stream": True}) as one, client(app) as http:
        name = json.loads((await one.chunk() or b"")[len(b"data: ") :].split(b"\n")[0])["id"]
        assert [card["id"] for card in await listed(http)] == [f"{name}/0", f"{name}/1"]
        response = await http.delete(f"/v1/requests/{name}")
        assert (response.status_code, response.json()) == (
            200,
            {"id": name, "deleted": True, "object": "request"},
        )
        chunks = await one.rest()
    assert chunks[-1] == b"event: error\ndata: " + CANCELLED + b"\n\n"
    assert b"".join(chunks).count(b"event: error") == 1
    assert b"[DONE]" not in b"".join(chunks)
    assert num_live(slow_engine) == 0
    await eventually(lambda: slow_engine.status().kv_tokens_used == 0)


@pytest.mark.parametrize("slash", ["/", "%2F"])
async def test_a_choice_is_named_with_a_slash_and_ends_its_call(
    slow_engine: EngineClient, slash: str
) -> None:
    app = api(slow_engine)
    async with exchange(app, "/v1/completions", {**LONG, "n": 2}) as one, client(app) as http:
        await eventually(lambda: num_live(slow_engine) == 2)
        name = str((await listed(http))[1]["id"])
        response = await http.delete("/v1/requests/" + name.replace("/", slash))
        assert response.json()["id"] == name
        assert await one.chunk() == CANCELLED
    assert one.status == 499
    assert num_live(slow_engine) == 0


async def test_a_request_that_waits_can_be_cancelled() -> None:
    async with (
        running(new_engine("step_s=0.02", max_seqs=1)) as engine,
        client(api(engine)) as http,
        exchange(api(engine), "/v1/completions", LONG) as first,
    ):
        await eventually(lambda: engine.status().running["interactive"] == 1)
        async with exchange(api(engine), "/v1/completions", LONG) as second:
            await eventually(lambda: engine.status().waiting["interactive"] == 1)
            await http.delete(f"/v1/requests/{(await listed(http))[1]['id']}")
            assert await second.chunk() == CANCELLED
        assert num_live(engine) == 1
        first.disconnect()


@pytest.mark.parametrize("name", ["chatcmpl-0", "chatcmpl-0/0", "", "a/b/c"])
async def test_what_does_not_live_is_not_found(http: httpx.AsyncClient, name: str) -> None:
    response = await http.delete(f"/v1/requests/{name}")
    assert response.status_code == 404
    assert error_of(response) == {
        "message": f"There is no live request '{name}'.",
        "type": "invalid_request_error",
        "param": "id",
        "code": "request_not_found",
    }


async def test_what_has_ended_cannot_be_cancelled(http: httpx.AsyncClient) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    name = (await http.post("/v1/completions", json=body)).json()["id"]
    assert (await http.delete(f"/v1/requests/{name}")).status_code == 404


async def test_the_sdk_is_told_and_does_not_try_again() -> None:
    async with running(new_engine("step_s=0.02")) as engine, client(api(engine)) as http:
        sdk = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http)
        answer = asyncio.create_task(
            sdk.completions.create(model="fake", prompt="a", extra_body={"ignore_eos": True})
        )
        await eventually(lambda: num_live(engine) == 1)
        assert engine.cancel(engine.requests()[0].id)
        with pytest.raises(openai.APIStatusError, match="cancelled") as caught:
            await answer
        assert (caught.value.status_code, caught.value.code) == (499, "request_cancelled")
        assert engine.totals.requests == 1
