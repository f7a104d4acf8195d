"""Adapters over HTTP: how requests name them, `/v1/adapters`, and what keys may do."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.config.adapters import AdapterSource
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.errors import AdapterFailed, AdapterNotAllowed
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client
from tests.api.talking import complete, error_of
from tests.models.test_registry import model

pytestmark = pytest.mark.anyio


def adapter(name: str, path: str = "a.gguf", scale: float = 1.0) -> Adapter:
    return Adapter(name=name, path=path, digest=hashlib.sha256(path.encode()).hexdigest(), scale=scale)


def find(source: AdapterSource) -> Adapter:
    if source.path.startswith("/"):
        raise AdapterNotAllowed("The path leads out of the server's --adapter-dir.")
    if "missing" in source.path:
        raise AdapterFailed(f"There is no file {source.path}.")
    return adapter(source.name, source.path, source.scale)


@pytest.fixture
async def engine() -> FakeEngine:
    engine = FakeEngine()
    await engine.load_adapter(adapter("french"))
    return engine


@pytest.fixture
async def http(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """`base` and `base:7b` are two models; the second's name has a colon."""
    models = [model("base", "alias", engine=engine), model("base:7b", engine=FakeEngine())]
    app = create_api(ModelRegistry(models), OPTIONS, find_adapter=find).app
    async with client(app) as http:
        yield http


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


class TestNaming:
    async def test_a_model_with_an_adapter(self, http: httpx.AsyncClient) -> None:
        plain = await complete(http, model="base", max_tokens=20)
        named = await complete(http, model="base:french", max_tokens=20)
        by_field = await complete(http, model="base", lora="french", max_tokens=20)
        by_default = await complete(http, lora="french", max_tokens=20)
        by_alias = await complete(http, model="alias:french", max_tokens=20)
        both = await complete(http, model="base:french", lora="french", max_tokens=20)
        assert text(plain) != text(named)
        assert text(named) == text(by_field) == text(by_default) == text(by_alias) == text(both)
        assert named.json()["model"] == by_field.json()["model"] == "base:french"
        prints = {answer.json()["system_fingerprint"] for answer in (plain, named, by_field)}
        assert len(prints) == 2

    async def test_its_tokens_are_counted(self, http: httpx.AsyncClient) -> None:
        await complete(http, model="base")
        await complete(http, model="base:french", max_tokens=7, ignore_eos=True)
        lines = (await http.get("/metrics")).text.splitlines()
        counted = [line for line in lines if line.startswith("ocs_adapter_tokens_total")]
        assert counted == [
            'ocs_adapter_tokens_total{adapter="base:french",kind="prompt"} 3.0',
            'ocs_adapter_tokens_total{adapter="base:french",kind="output"} 7.0',
        ]

    async def test_the_exact_name_of_a_model_goes_first_and_null_is_no_adapter(
        self, http: httpx.AsyncClient
    ) -> None:
        assert (await complete(http, model="base:7b")).json()["model"] == "base:7b"
        assert (await complete(http, model="base", lora=None)).json()["model"] == "base"
        refused = await complete(http, model="base:7b:french")
        assert (refused.status_code, error_of(refused)["code"]) == (404, "adapter_not_found")


class TestModels:
    async def test_they_are_listed_behind_the_models(self, http: httpx.AsyncClient) -> None:
        cards = (await http.get("/v1/models")).json()["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [
            ("base", None),
            ("alias", None),
            ("base:7b", None),
            ("base:french", "base"),
        ]
        assert (await http.get("/v1/models/base:french")).json() == cards[3]
        assert (await http.get("/v1/models/base:german")).status_code == 404

    @pytest.mark.parametrize("allowed", [["base"], ["base:french"], ["base", "base:french"]], ids=" ".join)
    async def test_a_key_names_them_as_models(
        self, engine: FakeEngine, tmp_path: Path, allowed: list[str]
    ) -> None:
        keys = key_ring(tmp_path, ann=f"models = {allowed}")
        models = ModelRegistry([model("base", engine=engine)])
        app = create_api(models, OPTIONS, keys=keys).app
        async with client(app, of("ann")) as http:
            listed = [card["id"] for card in (await http.get("/v1/models")).json()["data"]]
            assert listed == allowed
            assert (await complete(http)).json()["model"] == allowed[0]
            for name in ("base", "base:french"):
                status = (await complete(http, model=name)).status_code
                assert status == (200 if name in allowed else 404)
            by_field = await complete(http, model="base", lora="french")
            assert (by_field.status_code == 200) == ("base:french" in allowed)
            assert (await http.get("/v1/adapters")).status_code == 403


class TestRoutes:
    async def test_load_list_unload(self, http: httpx.AsyncClient) -> None:
        body = {"model": "base", "name": "german", "path": "g.gguf", "scale": 0.5}
        loaded = await http.post("/v1/adapters", json=body)
        assert loaded.status_code == 200
        card = loaded.json()
        assert (card["id"], card["state"], card["scale"], card["rank"]) == ("base:german", "ready", 0.5, 8)
        bad = await http.post("/v1/adapters", json={"name": "x", "path": "bad.gguf"})
        assert error_of(bad)["code"] == "adapter_failed"
        listed = (await http.get("/v1/adapters")).json()["data"]
        assert [one["id"] for one in listed] == ["base:french", "base:german"]
        assert listed[1] == card
        assert text(await complete(http, model="base:german"))
        gone = await http.delete("/v1/adapters/base:german")
        assert gone.json() == {"id": "base:german", "deleted": True, "object": "adapter"}
        assert (await complete(http, model="base:german")).status_code == 404
        assert (await http.delete("/v1/adapters/german")).status_code == 404
        assert (await http.delete("/v1/adapters/french")).status_code == 200

    async def test_one_of_the_same_name_takes_its_place(self, http: httpx.AsyncClient) -> None:
        before = text(await complete(http, model="base:french", max_tokens=20))
        await http.post("/v1/adapters", json={"name": "french", "path": "new.gguf"})
        assert text(await complete(http, model="base:french", max_tokens=20)) != before
        assert len((await http.get("/v1/adapters")).json()["data"]) == 1

    async def test_a_server_that_loads_none(self, engine: FakeEngine) -> None:
        app = create_api(ModelRegistry([model("base", engine=engine)]), OPTIONS).app
        async with client(app) as http:
            refused = await http.post("/v1/adapters", json={"name": "x", "path": "a"})
        assert (refused.status_code, error_of(refused)["code"]) == (403, "adapter_not_allowed")
