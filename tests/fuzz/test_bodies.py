"""Hostile bodies against the real application: no 5xx, no hang, and a good request is served behind them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import anyio
import httpx
import msgspec
import pytest

from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.http.key_file import KeyRing
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, client, locked_api, new_engine, num_live, running
from tests.api.talking import chat, told_error
from tests.fuzz.hostile import Bodies
from tests.fuzz.rich_bodies import RichBodies
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

SHORT = msgspec.structs.replace(OPTIONS, request_timeout_s=5.0, max_output_tokens=16, max_choices=8)
AT_ONCE = 16
FAKES_LIMIT = b"the pattern is broken"
"""What the fake backend says of grammars with brackets; it cannot execute them."""


@pytest.fixture(scope="module")
async def own_engine() -> AsyncIterator[EngineClient]:
    async with running(new_engine()) as engine:
        yield engine


@pytest.fixture
async def http(own_engine: EngineClient, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    jobs = Jobs(open_database(str(tmp_path / "jobs.db")), JobOptions(model="fake"))
    task = asyncio.create_task(jobs.run(_no_row))
    await asyncio.sleep(0)
    async with client(locked_api(own_engine, KeyRing(), options=SHORT, jobs=jobs)) as one:
        yield one
    await jobs.close()
    await task


async def _no_row(*_: object) -> NoReturn:
    raise AssertionError("no file has been uploaded")


async def attack(
    http: httpx.AsyncClient, engine: EngineClient | FakeEngine, bodies: Bodies | RichBodies, *, number: int
) -> Counter[int]:
    """How often each status came. Fails at the first 5xx, with the body that did it."""
    statuses: Counter[int] = Counter()
    for _ in range(number // AT_ONCE):
        answers = await asyncio.gather(*(_one(http, *bodies.one()) for _ in range(AT_ONCE)))
        statuses.update(answers)
    assert (await chat(http)).status_code == 200
    await eventually(lambda: num_live(engine) == 0)  # some go on in the background
    assert engine.status().restarts == 0
    return statuses


async def of_document(http: httpx.AsyncClient, seed: int) -> Bodies:
    return Bodies((await http.get("/openapi.json")).json(), seed)


async def _one(http: httpx.AsyncClient, path: str, body: bytes) -> int:
    with anyio.fail_after(DEADLINE_S):
        answer = await http.post(path, content=body, headers={"content-type": "application/json"})
    shown = (path, body[:2000], answer.text)
    assert answer.status_code < 500 or told_error(answer)["message"] == FAKES_LIMIT.decode(), shown
    if answer.status_code == 200:
        assert FAKES_LIMIT in answer.content or b"generation_failed" not in answer.content, shown
        assert b"internal_error" not in answer.content, shown
    else:
        assert told_error(answer)["message"]
        assert answer.content.isascii() or answer.content.decode()
    return answer.status_code


@pytest.mark.thorough
async def test_a_thousand_hostile_bodies(http: httpx.AsyncClient, own_engine: EngineClient) -> None:
    statuses = await attack(http, own_engine, await of_document(http, 6), number=1000)
    assert statuses[400] > 250, statuses
    assert statuses[200] > 10, "bodies that are refused at once test little"


async def test_responses_and_messages_with_something_odd_in_them() -> None:
    engine = FakeEngine(says="Hello")  # it takes any grammar
    jobs = Jobs(open_database("sqlite://"), JobOptions(model="fake"))
    async with client(locked_api(engine, KeyRing(), options=SHORT, jobs=jobs)) as http:
        statuses = await attack(http, engine, RichBodies(6), number=480)
    await jobs.close()
    assert statuses[200] > 50, statuses


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 150))
async def test_two_hundred_thousand_in_fifty_parts(
    http: httpx.AsyncClient, own_engine: EngineClient, seed: int
) -> None:
    await attack(http, own_engine, await of_document(http, seed), number=2000)
    await attack(http, own_engine, RichBodies(seed), number=2000)
