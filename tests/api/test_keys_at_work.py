"""What a key changes beside opening the door: models, priority, fairness, whose requests one sees."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from openai_cpu_server.http.key_file import KeyRing
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, locked_api, num_live, started
from tests.api.talking import MESSAGES, error_of

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
def locked(engine: FakeEngine, keys: KeyRing) -> Starlette:
    return locked_api(engine, keys)


@pytest.fixture
async def http(locked: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with client(locked) as one:
        yield one


async def test_who_is_refused_before_the_body_is_read_counts_with_the_keys_priority(
    engine: FakeEngine, keys: KeyRing
) -> None:
    app = locked_api(engine, keys, options=msgspec.structs.replace(OPTIONS, max_body_bytes=10))
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


CHAT = "/v1/chat/completions"
CLAUDE: dict[str, object] = {"messages": MESSAGES, "max_tokens": 900, "model": "fake"}
ASKED: list[tuple[str, str, dict[str, object], str | None, str]] = [
    ("ann", CHAT, LONG, None, "batch"),
    ("ann", CHAT, {**LONG, "priority": "interactive"}, None, "interactive"),
    ("bob", CHAT, LONG, None, "interactive"),
    ("shared", CHAT, LONG, None, "interactive"),
    *(
        (name, path, body, header, priority)
        for name, priority in (("low", "batch"), ("root", "interactive"))
        for path, body, header in (
            (CHAT, {**LONG, "priority": "interactive"}, None),
            (CHAT, {**LONG, "service_tier": "priority"}, None),
            (CHAT, LONG, "interactive"),
            ("/v1/completions", {"prompt": "a"}, "interactive"),
            ("/v1/responses", {"input": "a", "service_tier": "fast"}, None),
            ("/v1/messages", CLAUDE, "interactive"),
            ("/generate", {"prompt": "a"}, "interactive"),
        )
    ),
]
"""Keys, requests and `X-Priority`, with the priority that they get."""


@pytest.mark.parametrize(("name", "path", "body", "header", "priority"), ASKED)
async def test_the_scheduler_knows_the_keys_name_and_what_priority_it_gets(
    locked: Starlette, engine: FakeEngine, name: str, path: str, body: Any, header: str | None, priority: str
) -> None:
    """No way of asking gets a key more than its best priority."""
    engine.goes_on.clear()
    headers = {**of(name), **({"x-priority": header} if header else {})}
    async with started(locked, engine, path, body, headers):
        (live,) = engine.requests()
    assert live.priority.label == priority
    assert live.client == ("user:carl" if name == "shared" else f"key:{name}")


@pytest.mark.parametrize("who_ends", ["ann", "root"])
async def test_one_sees_and_ends_ones_own_requests_only_but_for_administrators(
    http: httpx.AsyncClient, locked: Starlette, engine: FakeEngine, who_ends: str
) -> None:
    engine.goes_on.clear()
    async with started(locked, engine, CHAT, LONG, of("ann")):
        name = engine.requests()[0].id

        async def listed(who: str) -> list[str]:
            return [c["id"] for c in (await http.get("/v1/requests", headers=of(who))).json()["data"]]

        for who in ("ann", "root", "shared"):
            assert await listed(who) == [name]
        for who in ("bob", "carl"):
            assert await listed(who) == []
            for path in (name, name.partition("/")[0]):
                refused = await http.delete(f"/v1/requests/{path}", headers=of(who))
                assert (refused.status_code, error_of(refused)["code"]) == (404, "request_not_found")
        assert num_live(engine) == 1
        assert (await http.delete(f"/v1/requests/{name}", headers=of(who_ends))).status_code == 200
    assert num_live(engine) == 0
