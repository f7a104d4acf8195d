"""Requests that run or wait: listed, ended by others than their clients, refused where there is no room."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.asking.route import comment
from openai_cpu_server.api.asking.running import NEWS_INTERVAL_S, SETTLING_S, QueueNews
from openai_cpu_server.contract.messages import QueuePlace
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ModelThinking, ServedModel
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import template_reasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import (
    LONG,
    OPTIONS,
    api,
    busy,
    client,
    locked_api,
    new_engine,
    num_live,
    running,
    waiting,
)
from tests.api.talking import MESSAGES, chat, error_of
from tests.reading import model_read_here
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

CANCELLED = (
    b'{"error":{"message":"The request was cancelled on the server.","type":"server_error",'
    b'"param":null,"code":"request_cancelled"}}'
)


async def listed(http: httpx.AsyncClient) -> list[dict[str, object]]:
    body = (await http.get("/v1/requests")).json()
    assert body["object"] == "list"
    return list(body["data"])


async def test_live_requests_are_listed() -> None:
    chat = {"messages": MESSAGES, "ignore_eos": True, "priority": "batch", "user": "ann"}
    async with (
        busy() as engine,
        client(api(engine)) as http,
        exchange(api(engine), "/v1/chat/completions", chat) as second,
    ):
        await eventually(lambda: engine.requests()[-1].position == 1)
        running_one, waiting_one = await listed(http)
        second.disconnect()
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
    async with busy() as engine, client(api(engine)) as http:
        async with waiting(engine) as second:
            await http.delete(f"/v1/requests/{(await listed(http))[1]['id']}")
            assert await second.chunk() == CANCELLED
        assert num_live(engine) == 1


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


# -- a full queue: refused by priority, with the scheduler's own estimate of when there is room --------------


async def test_a_full_queue_says_when_there_is_room() -> None:
    async with busy(0.05, max_queue=1) as engine, waiting(engine), client(api(engine)) as http:
        # The first guess is of a tiny model, and learning may correct it so far and no further.
        await eventually(lambda: (engine.requests()[-1].first_token_ms or 0) > 2500)
        before_ms = engine.requests()[-1].first_token_ms
        refused = await chat(http)
        assert before_ms is not None
        assert (refused.status_code, error_of(refused)["code"]) == (429, "queue_full")
        wait_ms = int(refused.headers["retry-after-ms"])
        assert wait_ms == pytest.approx(before_ms, rel=0.2)
        assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)


async def test_each_priority_has_a_queue_of_its_own() -> None:
    async with (
        busy(0.05, max_queue=1) as engine,
        client(api(engine)) as http,
        waiting(engine, priority="batch"),
    ):
        assert (await chat(http, priority="batch")).status_code == 429
        async with waiting(engine):
            assert (await chat(http)).status_code == 429


async def test_what_no_queue_can_ever_hold_is_a_wrong_request() -> None:
    async with running(new_engine(max_queue=2)) as engine, client(api(engine)) as http:
        refused = await chat(http, n=3)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "n")


# -- what a stream hears while it waits: when, in which bytes, and that nobody stumbles over it --------------


SHORT = {"prompt": "b", "ignore_eos": True, "max_tokens": 3, "stream": True, "temperature": 0}


@pytest.mark.parametrize(
    ("waited_s", "position", "due"),
    [
        (NEWS_INTERVAL_S, 2, True),
        (NEWS_INTERVAL_S, 4, True),
        (NEWS_INTERVAL_S, 3, False),
        (500.0, 3, False),
        (0.5, 2, False),
    ],
)
def test_a_new_position_is_news_but_not_many_a_second(waited_s: float, position: int, due: bool) -> None:
    now = [4.0]
    news = QueueNews(lambda: now[0])
    now[0] += SETTLING_S
    assert news.is_due(QueuePlace("a/0", 3, 10.0))
    now[0] += waited_s
    assert news.is_due(QueuePlace("a/0", position, 10.0)) == due


def test_the_bytes_of_a_comment() -> None:
    assert comment(QueuePlace("a/0", 3, 1199.6)) == b": queued position=3 first_token_ms=1200\n"


def test_a_stream_hears_of_every_place_that_lasts_until_its_first_chunk() -> None:
    now = [0.0]
    news = QueueNews(lambda: now[0])
    heard = []
    for now[0], position in ((0.0, 3), (0.3, 3), (0.7, 2), (1.2, 1), (1.7, 1), (2.2, 1)):
        heard.append(news.is_due(QueuePlace("a/0", position, 10.0)))
    assert heard == [False, True, False, False, True, False]
    news.is_over = True
    now[0] = 9.0
    assert not news.is_due(QueuePlace("a/0", 7, 10.0))


def waits_at(engine: EngineClient, position: int) -> Callable[[], bool]:
    return lambda: any(live.position == position for live in engine.requests())


def first_of(engine: EngineClient) -> str:
    return engine.requests()[0].id


@pytest.mark.thorough
async def test_a_waiting_stream_is_told_its_place_before_its_first_chunk() -> None:
    async with (
        busy(0.01) as engine,
        waiting(engine),
        exchange(api(engine), "/v1/completions", SHORT) as third,
    ):
        for position in (2, 1):
            heard = await third.chunk() or b""
            assert re.fullmatch(rb": queued position=%d first_token_ms=[1-9]\d*\n" % position, heard)
            engine.cancel(first_of(engine))
        chunks = await third.rest()
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert all(chunk.startswith(b"data: {") for chunk in chunks[:-1])
    assert b"queued" not in b"".join(chunks)


@pytest.mark.thorough
async def test_the_sdk_does_not_see_the_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai_cpu_server.api.asking.running.SETTLING_S", 0.0)
    bodies = []

    async def keep(response: httpx.Response) -> None:
        bodies.append(await response.aread())

    async with busy(0.01) as engine, client(api(engine)) as http:
        http.event_hooks = {"response": [keep]}
        sdk = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)
        async with anyio.create_task_group() as tasks:

            async def make_room() -> None:
                await eventually(waits_at(engine, 1))
                engine.cancel(first_of(engine))

            tasks.start_soon(make_room)
            stream = await sdk.chat.completions.create(
                model="fake",
                messages=MESSAGES,  # type: ignore[arg-type]
                max_tokens=5,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert bodies[0].startswith(b": queued position=1 first_token_ms=")
    assert len("".join(texts)) == 5


# -- answers that run are controlled ------------------------------------------------------------------------


STREAMS = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"model": "fake", "messages": MESSAGES, "max_tokens": 4000},
    "/api/chat": {"model": "fake", "messages": MESSAGES},
}
ENDED_WELL = {
    "/v1/chat/completions": b'"finish_reason":"stop"',
    "/v1/completions": b'"finish_reason":"stop"',
    "/v1/responses": b"response.completed",
    "/v1/messages": b'"stop_reason":"end_turn"',
    "/api/chat": b'"done_reason":"stop"',
}


@pytest.mark.parametrize("path", STREAMS)
async def test_an_answer_of_any_family_is_ended_as_it_is(path: str) -> None:
    """By the id of its request, which a header tells in all families."""
    engine = FakeEngine(is_held=True)
    app, headers = api(engine), {"x-request-id": "mine"}
    async with client(app) as http, exchange(app, path, {**STREAMS[path], "stream": True}, headers) as one:
        await eventually(lambda: num_live(engine) == 1)
        response = await http.post("/v1/chat/completions/mine/control", json={"action": "stop"})
        assert (response.status_code, response.json()) == (
            200,
            {"id": "mine", "action": "stop", "object": "chat.completion.control"},
        )
        told = b"".join(await one.rest())
    assert ENDED_WELL[path] in told
    again = await control(app, "mine", "stop")
    assert (again.status_code, error_of(again)["code"]) == (409, "request_ended")


async def control(app: Starlette, name: str, action: str, key: str = "") -> httpx.Response:
    async with client(app, of(key) if key else None) as http:
        return await http.post(f"/v1/chat/completions/{name}/control", json={"action": action})


async def test_only_who_has_begun_an_answer_controls_it(tmp_path: Path) -> None:
    engine = FakeEngine(is_held=True)
    keys = key_ring(tmp_path, ann="", bob="", root='scopes = ["inference", "admin"]')
    app = locked_api(engine, keys)
    body = {"messages": MESSAGES, "stream": True}
    for number, key in enumerate(("ann", "root")):
        headers = {**of("ann"), "x-request-id": f"hers-{number}"}
        async with exchange(app, "/v1/chat/completions", body, headers) as one:
            await eventually(lambda: num_live(engine) == 1)
            name = engine.requests()[0].id.partition("/")[0]
            others = await control(app, name, "stop", "bob")
            assert (others.status_code, error_of(others)["code"]) == (404, "request_not_found")
            async with client(app, of(key)) as http:
                response = await http.delete(f"/v1/chat/completions/{name}")
            assert response.json() == {"id": name, "deleted": True, "object": "chat.completion.deleted"}
            assert b'"finish_reason":"stop"' in b"".join(await one.rest())
        assert (await control(app, name, "stop", "bob")).status_code == 404
        assert (await control(app, name, "stop", "ann")).status_code == 409


@pytest.mark.parametrize(
    ("body", "param"), [({"action": "pause"}, "action"), ({}, "action"), ({"action": "stop", "to": 1}, "to")]
)
async def test_an_action_that_there_is_not_is_refused(
    http: httpx.AsyncClient, body: dict[str, object], param: str
) -> None:
    response = await http.post("/v1/chat/completions/x/control", json=body)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


async def test_llama_servers_route_says_in_its_words_whether_it_could() -> None:
    engine = FakeEngine(is_held=True)
    app, path = api(engine), "/v1/chat/completions/control"
    async with client(app) as http:
        none = await http.post(path, json={"id": "no", "action": "reasoning_end"})
        assert none.json() == {"success": False, "message": "There is no live request 'no'."}
        headers = {"x-request-id": "mine"}
        async with exchange(app, "/v1/completions", {"prompt": "a", "stream": True}, headers) as one:
            await eventually(lambda: num_live(engine) == 1)
            said = await http.post(path, json={"id": "mine", "action": "reasoning_end", "model": "fake"})
            assert not said.json()["success"]
            assert (await http.post(path, json={"id": "mine", "action": "stop"})).json() == {"success": True}
            await one.rest()


async def test_thoughts_are_ended_and_the_answer_begins(slow_engine: EngineClient) -> None:
    """The fake's thoughts would go on for ever."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}"
    app = api_of(thinking_model(slow_engine, template))
    body = {"messages": MESSAGES, "stream": True, "max_tokens": 1000, "ignore_eos": True}
    async with exchange(app, "/v1/chat/completions", body, {"x-request-id": "mine"}) as one:
        chunk = b""
        while b"reasoning_content" not in chunk:
            chunk = await one.chunk() or b""
        name = json.loads(chunk.partition(b"data: ")[2].partition(b"\n")[0])["id"]
        assert (await control(app, name, "stop_thinking")).status_code == 200
        thoughts, answer = "", ""
        while not answer:
            for choice in choices_of(await one.chunk()):
                thoughts += choice["delta"].get("reasoning_content", "")
                answer += choice["delta"].get("content", "")
        again = await control(app, name, "stop_thinking")
        assert (again.status_code, error_of(again)["code"]) == (409, "not_thinking")
        assert (await control(app, name, "stop")).status_code == 200
        last = [choice["finish_reason"] for piece in await one.rest() for choice in choices_of(piece)]
    assert thoughts.endswith("I have thought long enough and give my answer now.")
    assert last[-1] == "stop"


def choices_of(piece: bytes | None) -> list[dict[str, Any]]:
    assert piece is not None
    lines = [line for line in piece.split(b"\n") if line.startswith(b"data: {")]
    return [choice for line in lines for choice in json.loads(line[6:])["choices"]]


def thinking_model(engine: EngineClient, template: str) -> ServedModel:
    compiled = ChatTemplate(template, bos_text="", eos_text="")
    reasoning = template_reasoning(compiled)
    assert reasoning is not None
    return model_read_here(
        names=("fake",),
        engine=engine,
        template=compiled,
        tool_format=TOOL_FORMATS["demo"],
        thinking=ModelThinking(reasoning, is_on=None, budget=None),
    )


def api_of(model: ServedModel) -> Starlette:
    return create_api(ModelRegistry([model]), OPTIONS).app
