"""What a key changes beside opening the door: models, priority, fairness, whose requests one sees."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.http.key_file import KeyRing
from tests.api.asgi import exchange
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, locked_api, num_live
from tests.api.talking import MESSAGES, error_of
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

LONG = {"messages": MESSAGES, "ignore_eos": True, "user": "carl"}


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    holders = {
        "ann": 'priority = "batch"',
        "bob": 'models = ["team/fake"]',
        "carl": 'models = ["other"]',
        "low": 'max_priority = "batch"',
        "root": "admin = true",
    }
    return key_ring(tmp_path, "shared", **holders)


@pytest.fixture
def locked(slow_engine: EngineClient, keys: KeyRing) -> Starlette:
    return locked_api(slow_engine, keys)


@pytest.fixture
async def http(locked: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with client(locked) as one:
        yield one


async def models(http: httpx.AsyncClient, name: str) -> list[str]:
    answer = await http.get("/v1/models", headers=of(name))
    return [card["id"] for card in answer.json()["data"]]


async def test_one_sees_the_models_that_one_may_use(http: httpx.AsyncClient) -> None:
    assert await models(http, "ann") == ["fake", "team/fake"]
    assert await models(http, "bob") == ["team/fake"]
    assert await models(http, "carl") == []
    assert (await http.get("/v1/models/fake", headers=of("bob"))).status_code == 404
    assert (await http.get("/v1/models/team/fake", headers=of("bob"))).status_code == 200


async def test_who_is_refused_before_the_body_is_read_counts_with_the_keys_priority(
    slow_engine: EngineClient, keys: KeyRing
) -> None:
    app = locked_api(slow_engine, keys, options=msgspec.structs.replace(OPTIONS, max_body_bytes=10))
    async with client(app) as http:
        for name, more in (("ann", {}), ("ann", {"x-priority": "interactive"}), ("bob", {}), ("eve", {})):
            await http.post("/v1/completions", content=b"x" * 99, headers={**of(name), **more})
        lines = (await http.get("/metrics", headers=of("root"))).text.splitlines()
    counted = [line for line in lines if line.startswith("ocs_requests_total")]
    assert sorted(re.findall(r'priority="(\w+)",.*status="(4\d\d)"} (\d)', "\n".join(counted))) == [
        ("batch", "413", "1"),
        ("interactive", "413", "2"),
        ("none", "401", "1"),
    ]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_a_model_that_one_may_not_use_does_not_exist(http: httpx.AsyncClient, path: str) -> None:
    body = {
        "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
        "/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [3]},
    }[path]
    refused = await http.post(path, json={**body, "model": "fake"}, headers=of("bob"))
    assert (refused.status_code, error_of(refused)["code"]) == (404, "model_not_found")
    for model in ({"model": "team/fake"}, {}):
        answer = await http.post(path, json={**body, **model}, headers=of("bob"))
        assert answer.status_code == 200
        assert answer.json().get("model", "team/fake") == "team/fake"
    assert (await http.post(path, json=body, headers=of("carl"))).status_code == 404


@pytest.mark.parametrize(
    ("name", "fields", "seen"),
    [
        ("ann", {}, ("key:ann", "batch")),
        ("ann", {"priority": "interactive"}, ("key:ann", "interactive")),
        ("bob", {}, ("key:bob", "interactive")),
        ("shared", {}, ("user:carl", "interactive")),
    ],
)
async def test_the_scheduler_knows_the_keys_name_and_priority(
    locked: Starlette, slow_engine: EngineClient, name: str, fields: dict[str, str], seen: tuple[str, str]
) -> None:
    async with exchange(locked, "/v1/chat/completions", {**LONG, **fields}, of(name)) as one:
        await eventually(lambda: num_live(slow_engine) == 1)
        (live,) = slow_engine.requests()
        assert (live.client, live.priority.label) == seen
        one.disconnect()


ASKING_MORE: list[tuple[str, dict[str, object], dict[str, str]]] = [
    ("/v1/chat/completions", {**LONG, "priority": "interactive"}, {}),
    ("/v1/chat/completions", {**LONG, "service_tier": "priority"}, {}),
    ("/v1/chat/completions", LONG, {"x-priority": "interactive"}),
    ("/v1/completions", {"prompt": "a", "ignore_eos": True}, {"x-priority": "interactive"}),
    ("/v1/responses", {"input": "a", "service_tier": "fast"}, {}),
    (
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 900, "model": "fake"},
        {"x-priority": "interactive"},
    ),
    ("/generate", {"prompt": "a"}, {"x-priority": "interactive"}),
]


@pytest.mark.parametrize(("path", "body", "headers"), ASKING_MORE)
async def test_no_way_of_asking_gets_a_key_more_than_its_best_priority(
    locked: Starlette,
    slow_engine: EngineClient,
    path: str,
    body: dict[str, object],
    headers: dict[str, str],
) -> None:
    for name, priority in (("low", "batch"), ("bob", "interactive")):
        async with exchange(locked, path, {**body, "model": "team/fake"}, {**of(name), **headers}) as one:
            await eventually(lambda: num_live(slow_engine) == 1)
            assert slow_engine.requests()[0].priority.label == priority
            one.disconnect()
        await eventually(lambda: num_live(slow_engine) == 0)


async def test_a_tier_that_a_key_does_not_get_is_not_told(http: httpx.AsyncClient) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "service_tier": "priority"}
    for name, tier in (("low", "flex"), ("ann", "priority")):
        answer = await http.post("/v1/chat/completions", json=body, headers=of(name))
        assert answer.json()["service_tier"] == tier
    told = {"input": "a", "max_output_tokens": 1, "service_tier": "fast"}
    for name, tier in (("low", "flex"), ("ann", "fast")):
        answer = await http.post("/v1/responses", json=told, headers=of(name))
        assert answer.json()["service_tier"] == tier


@pytest.mark.parametrize("who_ends", ["ann", "root"])
async def test_one_sees_and_ends_ones_own_requests_only_but_for_administrators(
    http: httpx.AsyncClient, locked: Starlette, slow_engine: EngineClient, who_ends: str
) -> None:
    async with exchange(locked, "/v1/chat/completions", LONG, of("ann")):
        await eventually(lambda: num_live(slow_engine) == 1)
        name = slow_engine.requests()[0].id

        async def listed(who: str) -> list[str]:
            return [c["id"] for c in (await http.get("/v1/requests", headers=of(who))).json()["data"]]

        for who in ("ann", "root", "shared"):
            assert await listed(who) == [name]
        for who in ("bob", "carl"):
            assert await listed(who) == []
            for path in (name, name.partition("/")[0]):
                refused = await http.delete(f"/v1/requests/{path}", headers=of(who))
                assert (refused.status_code, error_of(refused)["code"]) == (404, "request_not_found")
        assert num_live(slow_engine) == 1
        assert (await http.delete(f"/v1/requests/{name}", headers=of(who_ends))).status_code == 200
    assert num_live(slow_engine) == 0
