"""The application on an engine in this process, and on engine processes that last for a module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import NoReturn

import httpx
import pytest
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette

from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from tests.api.fake_engine import FakeEngine
from tests.api.serving import api, client, new_engine, running

_MIDDAY = 20_000.5 * 86_400 + 30


@pytest.fixture(autouse=True)
def within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the clock of the rate limits: they count by the minute and the day, and a test must not end in the
    next one."""
    monkeypatch.setattr("limits.aio.storage.memory.time", SimpleNamespace(time=lambda: _MIDDAY))


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
async def process() -> AsyncIterator[EngineClient]:
    """A real engine process."""
    async with running(new_engine()) as one:
        yield one


@pytest.fixture(scope="module")
async def slow_engine() -> AsyncIterator[EngineClient]:
    async with running(new_engine("step_s=0.02")) as one:
        yield one


@pytest.fixture
def app(engine: FakeEngine) -> Starlette:
    return api(engine)


@pytest.fixture
async def http(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with client(app) as one:
        yield one


@pytest.fixture(scope="module")
async def jobs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Jobs]:
    """Jobs without a batch."""
    database = open_database(str(tmp_path_factory.mktemp("jobs") / "jobs.db"))
    jobs = Jobs(database, JobOptions(model="fake"))
    task = asyncio.create_task(jobs.run(_no_row))
    await checkpoint()
    yield jobs
    await jobs.close()
    await task


async def _no_row(*_: object) -> NoReturn:
    raise AssertionError("no batch has been sent")
