"""Requests go to the engine of the model that their bodies name; what concerns the server goes over all."""

from __future__ import annotations

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, client, eventually, num_live
from tests.api.sockets import opened
from tests.api.talking import MESSAGES, chat, complete, error_of
from tests.models.test_registry import model

pytestmark = pytest.mark.anyio


class Pair:
    """Two models, of which `small` is the default."""

    def __init__(self) -> None:
        self.small, self.large = FakeEngine(), FakeEngine(None)
        models = [model("small", engine=self.small), model("large", engine=self.large)]
        self.app = create_api(ModelRegistry(models), OPTIONS).app


async def test_the_body_decides_whose_engine_is_asked() -> None:
    """The large one has not been loaded yet."""
    pair = Pair()
    async with client(pair.app) as http:
        by_default, named = await complete(http), await complete(http, model="small")
        waits, unknown = await complete(http, model="large"), await complete(http, model="x")
    assert by_default.json()["model"] == named.json()["model"] == "small"
    assert (waits.status_code, error_of(waits)["code"]) == (503, "engine_unavailable")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")


async def test_a_body_that_is_wrong_is_refused_before_any_engine_is_asked() -> None:
    async with client(Pair().app) as http:
        refused = await chat(http, model="large", temperature=9)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "temperature")


async def test_requests_of_all_models_are_listed_and_ended() -> None:
    pair = Pair()
    pair.large.info = pair.small.info
    body = {"prompt": "a", "ignore_eos": True}
    pair.small.goes_on.clear()
    pair.large.goes_on.clear()
    path = "/v1/completions"
    async with (
        exchange(pair.app, path, {**body, "model": "small"}) as one,
        exchange(pair.app, path, {**body, "model": "large"}) as two,
        client(pair.app) as http,
    ):
        await eventually(lambda: num_live(pair.small) == num_live(pair.large) == 1)
        assert (await http.get("/health")).json()["queue"]["interactive"]["running"] == 2
        for card in await _listed(http):
            assert (await http.delete(f"/v1/requests/{card['id']}")).status_code == 200
        assert await _listed(http) == []
        for ended in (one, two):
            assert b"request_cancelled" in (await ended.chunk() or b"")


async def _listed(http: httpx.AsyncClient) -> list[dict[str, object]]:
    return list((await http.get("/v1/requests")).json()["data"])


async def test_the_listing_tells_which_are_loaded() -> None:
    async with client(Pair().app) as http:
        cards = (await http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["meta"] is None) for card in cards] == [("small", False), ("large", True)]


async def test_a_socket_speaks_to_all_models() -> None:
    async with opened(Pair().app) as socket:
        socket.send({"request_id": "a", "messages": MESSAGES, "model": "large"})
        assert (await socket.until_end("a"))["a"][-1]["error"]["code"] == "engine_unavailable"
