"""A key whose requests the engine dies of is sent away, in all families; nobody else notices."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.http.keys import KeyRing
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, new_engine, running, served
from tests.api.sockets import connected
from tests.api.talking import told_error

pytestmark = pytest.mark.anyio

KILL = f"kill_on={2 + ord('~')}"
FAMILIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "TEXT"}]},
    "/v1/completions": {"prompt": "TEXT"},
    "/v1/messages": {"messages": [{"role": "user", "content": "TEXT"}], "max_tokens": 4},
    "/v1/generate": {"prompt": "TEXT"},
    "/generate": {"prompt": "TEXT"},
}


def body(path: str, text: str) -> dict[str, object]:
    fields = json.loads(json.dumps(FAMILIES[path]).replace("TEXT", text))
    return {"max_tokens": 4, "temperature": 0, **fields}


@pytest.fixture
async def engine() -> AsyncIterator[EngineClient]:
    async with running(new_engine(KILL)) as engine:
        yield engine


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    return key_ring(tmp_path, ann="", bob="")


async def say(http: httpx.AsyncClient, path: str, text: str, name: str) -> httpx.Response:
    return await http.post(path, json=body(path, text), headers=of(name))


async def test_a_key_that_kills_engines_is_sent_away_in_all_families(
    engine: EngineClient, keys: KeyRing
) -> None:
    app = create_api(served(engine), OPTIONS, keys=keys).app
    async with client(app) as http:
        for path in ("/v1/messages", "/v1/generate"):
            killed = await say(http, path, "~", "ann")
            assert (killed.status_code, killed.headers["x-should-retry"]) == (500, "false"), (
                "SDKs repeat a 500"
            )
        for path in FAMILIES:
            refused = await say(http, path, "~", "ann")
            assert refused.status_code == 429, path
            assert told_error(refused).get("code", "too_many_crashes") == "too_many_crashes"
            assert 0 < int(refused.headers["retry-after"]) <= 600
            assert (await say(http, path, "hi", "bob")).status_code == 200
        assert (await say(http, "/v1/completions", "hi", "ann")).status_code == 429
        async with connected(app, of("ann")) as socket:
            await socket.accepted()
            socket.ask("a")
            (end,) = (await socket.until_end("a"))["a"]
            assert (end["status"], end["error"]["code"]) == (429, "too_many_crashes")
        assert (await http.get("/ready")).status_code == 200
        assert engine.status().restarts == 4


async def test_rows_of_batches_count_and_wait_as_long(engine: EngineClient, keys: KeyRing) -> None:
    made = create_api(served(engine), OPTIONS, keys=keys)
    path = "/v1/completions"
    good, bad = (json.dumps(body(path, text)).encode() for text in ("hi", "~"))
    for row, status in ((good, 200), (bad, 500), (good, 200), (bad, 500)):
        answer = await made.run_row(path, row, "ann")
        assert (answer.status, answer.retry_after_s, answer.pauses) == (status, None, False)
    put_off = await made.run_row(path, good, "ann")
    assert (put_off.status, put_off.pauses) == (429, True)
    assert put_off.retry_after_s is not None
    assert 0 < put_off.retry_after_s <= 600
    assert (await made.run_row(path, good, "bob")).status == 200
    async with client(made.app) as http:
        assert (await say(http, path, "hi", "ann")).status_code == 429
