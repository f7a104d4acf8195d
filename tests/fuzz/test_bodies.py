"""Hostile bodies against the real application: no 5xx, no hang, and a good request is served behind them.

The same with a real engine: tests/fuzz/test_served.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import anyio
import httpx
import msgspec
import pytest

from openai_cpu_server.http.key_file import KeyRing
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, client, locked_api, num_live
from tests.api.talking import chat, told_error
from tests.fuzz.hostile import Bodies
from tests.fuzz.rich_bodies import RichBodies
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

SHORT = msgspec.structs.replace(OPTIONS, request_timeout_s=5.0, max_output_tokens=16, max_choices=8)
AT_ONCE = 16


@pytest.fixture
def engine() -> FakeEngine:
    """It takes any grammar."""
    return FakeEngine(says="Hello")


@pytest.fixture
async def http(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    jobs = Jobs(open_database("sqlite://"), JobOptions(model="fake"))
    async with client(locked_api(engine, KeyRing(), options=SHORT, jobs=jobs)) as one:
        yield one
    await jobs.close()


async def attack(
    http: httpx.AsyncClient, engine: FakeEngine, bodies: Bodies | RichBodies, number: int
) -> Counter[int]:
    """Number of answers by status. Fails at the first 5xx, with the body that did it."""
    statuses: Counter[int] = Counter()
    for _ in range(number // AT_ONCE):
        statuses.update(await asyncio.gather(*(one(http, *bodies.one()) for _ in range(AT_ONCE))))
    assert (await chat(http)).status_code == 200
    await eventually(lambda: num_live(engine) == 0)  # some go on in the background
    return statuses


async def one(http: httpx.AsyncClient, path: str, body: bytes) -> int:
    with anyio.fail_after(DEADLINE_S):
        answer = await http.post(path, content=body, headers={"content-type": "application/json"})
    shown = (path, body[:2000], answer.text)
    assert answer.status_code < 500, shown
    if answer.status_code == 200:
        assert b"generation_failed" not in answer.content, shown
        assert b"internal_error" not in answer.content, shown
    else:
        assert told_error(answer)["message"]
    return answer.status_code


async def of_document(http: httpx.AsyncClient, seed: int) -> Bodies:
    return Bodies((await http.get("/openapi.json")).json(), seed)


async def test_a_thousand_hostile_bodies(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    statuses = await attack(http, engine, await of_document(http, 6), 1000)
    assert statuses[400] > 250, statuses
    assert statuses[200] > 10, "bodies that are refused at once test little"


async def test_responses_and_messages_with_something_odd_in_them(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    statuses = await attack(http, engine, RichBodies(6), 480)
    assert statuses[200] > 50, statuses


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 150))
async def test_two_hundred_thousand_in_fifty_parts(
    http: httpx.AsyncClient, engine: FakeEngine, seed: int
) -> None:
    await attack(http, engine, await of_document(http, seed), 2000)
    await attack(http, engine, RichBodies(seed), 2000)
