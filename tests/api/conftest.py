"""The application on an engine in this process, and on engine processes that last for a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette

from openai_cpu_server.engine_client.client import EngineClient
from tests.api.fake_engine import FakeEngine
from tests.api.serving import api, client, new_engine, running


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
async def process() -> AsyncIterator[EngineClient]:
    """A real engine process, for tests of what it brings."""
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
