"""The application on engines that last for a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette

from openai_cpu_server.dispatch.dispatcher import Dispatcher
from tests.api.serving import api, client, new_engine, running


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Dispatcher]:
    async with running(new_engine()) as one:
        yield one


@pytest.fixture(scope="module")
async def slow_engine() -> AsyncIterator[Dispatcher]:
    async with running(new_engine("step_s=0.02")) as one:
        yield one


@pytest.fixture
def app(engine: Dispatcher) -> Starlette:
    return api(engine)


@pytest.fixture
async def http(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with client(app) as one:
        yield one
