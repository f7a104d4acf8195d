"""Adapters over HTTP. More cases are in `exchanges/adapters.txt`."""

from __future__ import annotations

import hashlib

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.config.adapters import AdapterSource
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.errors import AdapterFailed, AdapterNotAllowed
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, client
from tests.api.talking import complete, error_of
from tests.models.test_registry import model

pytestmark = pytest.mark.anyio


def adapter(name: str, path: str = "a.gguf", scale: float = 1.0) -> Adapter:
    return Adapter(name=name, path=path, digest=hashlib.sha256(path.encode()).hexdigest(), scale=scale)


def find(source: AdapterSource) -> Adapter:
    if source.path.startswith("/"):
        raise AdapterNotAllowed("The path is outside of the server's --adapter-dir.")
    if "missing" in source.path:
        raise AdapterFailed(f"The file {source.path} does not exist.")
    return adapter(source.name, source.path, source.scale)


@pytest.fixture
async def engine() -> FakeEngine:
    engine = FakeEngine()
    await engine.load_adapter(adapter("french"))
    return engine


async def test_tokens_of_adapters_are_counted(engine: FakeEngine) -> None:
    async with client(create_api(ModelRegistry([model("base", engine=engine)]), OPTIONS).app) as http:
        await complete(http, model="base")
        await complete(http, model="base:french", max_tokens=7, ignore_eos=True)
        lines = (await http.get("/metrics")).text.splitlines()
    counted = [line for line in lines if line.startswith("ocs_adapter_tokens_total")]
    assert counted == [
        'ocs_adapter_tokens_total{adapter="base:french",kind="prompt"} 3.0',
        'ocs_adapter_tokens_total{adapter="base:french",kind="output"} 7.0',
    ]


async def test_a_server_without_adapters_refuses_to_load_one(http: httpx.AsyncClient) -> None:
    refused = await http.post("/v1/adapters", json={"name": "x", "path": "a"})
    assert (refused.status_code, error_of(refused)["code"]) == (403, "adapter_not_allowed")
