"""Running and waiting requests: lists, cancellation, control of answers, queue positions, a full queue."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest
from dirty_equals import IsFloat, IsPartialDict
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.generation.route import comment
from openai_cpu_server.api.generation.running import NEWS_INTERVAL_S, SETTLING_S, QueueNews
from openai_cpu_server.contract.messages import QueuePlace
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ModelThinking
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import template_reasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.asgi import exchange
from tests.api.serving import OPTIONS, api, busy, client, num_live, waiting
from tests.api.talking import MESSAGES, chat, error_of
from tests.clock import Clock
from tests.gates import Gate
from tests.reading import model_read_here
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

CANCELLED = (
    b'{"error":{"message":"The request was cancelled on the server.","type":"server_error",'
    b'"param":null,"code":"request_cancelled"}}'
)


async def test_a_waiting_request_is_listed_and_can_be_cancelled() -> None:
    """Running requests are in `exchanges/control.txt`."""
    chat = {"messages": MESSAGES, "ignore_eos": True, "priority": "batch", "user": "ann"}
    async with (
        busy() as engine,
        client(api(engine)) as http,
        exchange(api(engine), "/v1/chat/completions", chat) as second,
    ):
        await eventually(lambda: engine.requests()[-1].position == 1)
        waiting_one = (await http.get("/v1/requests")).json()["data"][1]
        await http.delete(f"/v1/requests/{waiting_one['id']}")
        assert await second.chunk() == CANCELLED
        assert num_live(engine) == 1
    facts = {"state": "waiting", "position": 1, "first_token_ms": IsFloat, "client": "ann"}
    assert waiting_one == IsPartialDict(facts)


# -- a full queue: a 429 with the scheduler's estimate of the wait -------------------------------------------


async def test_a_429_of_a_full_queue_has_the_time_to_wait(tmp_path: Path) -> None:
    """The engine is held after its first estimate for the waiting request, which is far in the future."""
    gate, steps = Gate(tmp_path / "steps", num_steps=10), itertools.count(11)
    async with (
        busy(gate.steps, "slow_curve=1", max_queue=1) as engine,
        client(api(engine)) as http,
        waiting(engine),
    ):

        def is_estimated() -> bool:
            gate.allow(next(steps))
            return engine.requests()[-1].first_token_ms is not None

        await eventually(is_estimated)
        gate.close()
        is_as_estimated = False
        with anyio.fail_after(DEADLINE_S):
            while not is_as_estimated:  # until the engine's last estimate has come
                before_ms = first_token_ms(engine)
                refused = await chat(http)
                assert (refused.status_code, error_of(refused)["code"]) == (429, "queue_full")
                wait_ms = int(refused.headers["retry-after-ms"])
                is_as_estimated = 0 < first_token_ms(engine) - 1 <= wait_ms <= before_ms + 1
        assert error_of(await chat(http, n=2))["param"] == "n", "two choices never fit into a queue of one"
        gate.open()


def first_token_ms(engine: EngineClient) -> float:
    """Estimated time to the first token of the last request."""
    expected_ms = engine.requests()[-1].first_token_ms
    assert expected_ms is not None
    return expected_ms


# -- queue positions in a waiting stream ---------------------------------------------------------------------


SHORT = {"prompt": "b", "ignore_eos": True, "max_tokens": 3, "stream": True, "temperature": 0}


def test_the_bytes_of_a_comment() -> None:
    assert comment(QueuePlace("a/0", 3, 1199.6)) == b": queued position=3 first_token_ms=1200\n"


@pytest.mark.parametrize(
    "places",
    [
        ((0.0, 3, False), (0.3, 3, True), (0.7, 2, False), (1.2, 1, False), (1.7, 1, True), (2.2, 1, False)),
        ((SETTLING_S, 3, True), (SETTLING_S + NEWS_INTERVAL_S, 2, True)),
        ((SETTLING_S, 3, True), (SETTLING_S + NEWS_INTERVAL_S, 4, True)),
        ((SETTLING_S, 3, True), (SETTLING_S + NEWS_INTERVAL_S, 3, False), (500.0, 3, False)),
        ((SETTLING_S, 3, True), (SETTLING_S + 0.5, 2, False)),
    ],
)
def test_a_stream_gets_every_position_that_lasts(places: tuple[tuple[float, int, bool], ...]) -> None:
    """Positions come at intervals, and not after the first chunk."""
    news = QueueNews(clock := Clock())
    for clock.now_s, position, due in places:
        assert news.is_due(QueuePlace("a/0", position, 10.0)) == due
    news.is_over, clock.now_s = True, 900.0
    assert not news.is_due(QueuePlace("a/0", 7, 10.0))


@pytest.mark.thorough
async def test_a_waiting_stream_gets_its_position_before_its_first_chunk() -> None:
    async with (
        busy("step_s=0.05") as engine,
        waiting(engine),
        exchange(api(engine), "/v1/completions", SHORT) as third,
    ):
        for position in (2, 1):
            line = await third.chunk() or b""
            assert re.fullmatch(rb": queued position=%d first_token_ms=[1-9]\d*\n" % position, line)
            engine.cancel(engine.requests()[0].id)
        chunks = await third.rest()
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert all(chunk.startswith(b"data: {") for chunk in chunks[:-1])
    assert b"queued" not in b"".join(chunks)


async def test_the_sdk_skips_comments(http: httpx.AsyncClient) -> None:
    stream = await chat(http, stream=True, ignore_eos=True)
    body = comment(QueuePlace("a/0", 1, 10.0)) + stream.content
    answer = httpx.Response(200, content=body, headers={"content-type": stream.headers["content-type"]})
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: answer)) as replayed:
        sdk = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=replayed)
        chunks = await sdk.chat.completions.create(model="fake", messages=[], stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in chunks]
    assert len("".join(texts)) == 8


# -- control of running answers; their ends are in `exchanges/control.txt` -----------------------------------


async def control(app: Starlette, name: str, action: str) -> httpx.Response:
    async with client(app) as http:
        return await http.post(f"/v1/chat/completions/{name}/control", json={"action": action})


async def test_ended_thoughts_are_followed_by_the_answer(slow_engine: EngineClient) -> None:
    """The fake never ends its thoughts."""
    words = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}"
    template = ChatTemplate(words, bos_text="", eos_text="")
    reasoning = template_reasoning(template)
    assert reasoning is not None
    thinking = ModelThinking(reasoning, is_on=None, budget=None)
    demo = TOOL_FORMATS["demo"]
    model = model_read_here(
        names=("fake",), engine=slow_engine, template=template, tool_format=demo, thinking=thinking
    )
    app = create_api(ModelRegistry([model]), OPTIONS).app
    body = {"messages": MESSAGES, "stream": True, "ignore_eos": True}
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
