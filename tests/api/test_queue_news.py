"""What a stream hears while it waits: when, in which bytes, and that nobody stumbles over it."""

from __future__ import annotations

import re
from collections.abc import Callable

import anyio
import httpx
import openai
import pytest

from openai_cpu_server.api.asking.route import comment
from openai_cpu_server.api.asking.running import NEWS_INTERVAL_S, QueueNews
from openai_cpu_server.contract.messages import QueuePlace
from openai_cpu_server.engine_client.client import EngineClient
from tests.api.asgi import Exchange, exchange
from tests.api.serving import api, client, eventually, new_engine, running
from tests.api.talking import MESSAGES

pytestmark = pytest.mark.thorough

LONG = {"prompt": "a", "ignore_eos": True}
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
    assert news.is_due(QueuePlace("a/0", 3, 10.0))
    now[0] += waited_s
    assert news.is_due(QueuePlace("a/0", position, 10.0)) == due


def test_the_bytes_of_a_comment() -> None:
    assert comment(QueuePlace("a/0", 3, 1199.6)) == b": queued position=3 first_token_ms=1200\n\n"


def test_a_stream_hears_of_every_place_that_lasts_until_its_first_chunk() -> None:
    now = [0.0]
    news = QueueNews(lambda: now[0])
    heard = []
    for now[0], position in ((0.0, 3), (0.4, 2), (0.9, 1), (1.4, 1), (1.9, 1)):
        heard.append(news.is_due(QueuePlace("a/0", position, 10.0)))
    assert heard == [True, False, False, True, False]
    news.is_over = True
    now[0] = 9.0
    assert not news.is_due(QueuePlace("a/0", 7, 10.0))


def waits_at(engine: EngineClient, position: int) -> Callable[[], bool]:
    return lambda: any(live.position == position for live in engine.requests())


def first_of(engine: EngineClient) -> str:
    return engine.requests()[0].id


async def rest_of(one: Exchange) -> list[bytes]:
    chunks = []
    while (chunk := await one.chunk()) is not None:
        chunks.append(chunk)
    return chunks


@pytest.mark.anyio
async def test_a_waiting_stream_is_told_its_place_before_its_first_chunk() -> None:
    async with running(new_engine("step_s=0.01", max_seqs=1)) as engine:
        app = api(engine)
        async with exchange(app, "/v1/completions", LONG):
            await eventually(lambda: engine.status().running["interactive"] == 1)
            async with exchange(app, "/v1/completions", LONG):
                await eventually(lambda: engine.status().waiting["interactive"] == 1)
                async with exchange(app, "/v1/completions", SHORT) as third:
                    heard = await third.chunk() or b""
                    assert re.fullmatch(rb": queued position=2 first_token_ms=[1-9]\d*\n\n", heard)
                    engine.cancel(first_of(engine))
                    heard = await third.chunk() or b""
                    assert re.fullmatch(rb": queued position=1 first_token_ms=[1-9]\d*\n\n", heard)
                    engine.cancel(first_of(engine))
                    chunks = await rest_of(third)
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert all(chunk.startswith(b"data: {") for chunk in chunks[:-1])
    assert b"queued" not in b"".join(chunks)


@pytest.mark.anyio
async def test_the_sdk_does_not_see_the_comments() -> None:
    bodies = []

    async def keep(response: httpx.Response) -> None:
        bodies.append(await response.aread())

    async with running(new_engine("step_s=0.01", max_seqs=1)) as engine, client(api(engine)) as http:
        http.event_hooks = {"response": [keep]}
        sdk = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)
        async with exchange(api(engine), "/v1/completions", LONG), anyio.create_task_group() as tasks:
            await eventually(lambda: engine.status().running["interactive"] == 1)

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
