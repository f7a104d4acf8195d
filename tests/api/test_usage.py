"""`GET /v1/usage`, apart from `exchanges/usage_of_keys.txt`: rows, clients that leave, costs and CPU time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.contract.figures import Amounts, Price
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.observe.telemetry import ModelTelemetry, Telemetry
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of, sha
from tests.api.serving import OPTIONS, client, new_engine, running, served
from tests.api.talking import MESSAGES, chat
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KEYS = {"ann": "", "bob": "", "root": "admin = true", "scraper": 'scopes = ["metrics"]'}
CHAT = "/v1/chat/completions"


class Server:
    def __init__(self, engine: Engine, folder: Path, telemetry: Telemetry) -> None:
        self.jobs = Jobs(open_database(str(folder / "jobs.db")), JobOptions(model="fake"))
        options = msgspec.structs.replace(OPTIONS, prices={"fake": Price(input=1e6, cached=0.0, output=1e6)})
        api = create_api(
            served(engine), options, keys=key_ring(folder, **KEYS), jobs=self.jobs, telemetry=telemetry
        )
        self.app, self.run_row = api.app, api.run_row

    def client_of(self, key: str) -> httpx.AsyncClient:
        return client(self.app, of(key))

    async def usage(self, **query: str) -> dict[str, Any]:
        async with self.client_of("root") as http:
            answer = await http.get("/v1/usage", params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@asynccontextmanager
async def serving(engine: Engine, folder: Path, telemetry: Telemetry | None = None) -> AsyncIterator[Server]:
    server = Server(engine, folder, telemetry or Telemetry.new(model="fake"))
    yield server
    await server.jobs.close()


async def test_rows_of_batches_count_for_their_key_and_have_a_price(tmp_path: Path) -> None:
    row = b'{"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}'
    async with serving(FakeEngine(), tmp_path) as server:
        assert (await server.run_row(CHAT, row, "bob")).status == 200
        usage = await server.usage()
    (entry,) = usage["data"]
    assert (entry["key"], entry["requests"], entry["output_tokens"]) == ("bob", 1, 8)
    assert usage["total"]["cost"] == entry["cost"] == entry["input_tokens"] + entry["output_tokens"]


async def test_abandoned_calls_count_no_tokens(tmp_path: Path) -> None:
    engine = FakeEngine(is_held=True)
    async with serving(engine, tmp_path) as server:
        async with exchange(server.app, CHAT, {"messages": MESSAGES}, headers=of("ann")) as leaving:
            await eventually(lambda: bool(engine.requests()))
            leaving.disconnect()
        (row,) = (await server.usage())["data"]
    assert (row["requests"], row["input_tokens"], row["output_tokens"]) == (1, 0, 0)


@pytest.mark.parametrize("by", ["key", "key,model", "day,key"])
async def test_a_page_may_begin_after_a_key_without_a_name(tmp_path: Path, by: str) -> None:
    async with serving(FakeEngine(), tmp_path) as server:
        server.jobs.usage.add("", "fake", Amounts(requests=1))
        server.jobs.usage.add("Zoe", "fake", Amounts(requests=1))
        query = {"limit": "1", "order": "asc", "group_by": by}
        first = await server.usage(**query)
        rest = await server.usage(**query, after=first["last_id"])
    assert [row["key"] for row in first["data"] + rest["data"]] == ["", "Zoe"]


async def test_cpu_seconds_are_shared_among_keys_and_exported_to_prometheus(tmp_path: Path) -> None:
    """On a real engine process, work for a client that has left counts too."""
    telemetry = Telemetry.new(model="fake")
    async with (
        running(new_engine(observer=ModelTelemetry(telemetry, "fake"))) as engine,
        serving(engine, tmp_path, telemetry) as server,
    ):
        async with server.client_of("ann") as http:
            await chat(http, max_tokens=30)
        body = {"messages": MESSAGES, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        async with exchange(server.app, CHAT, body, headers=of("bob")) as leaving:
            await leaving.chunk()
            leaving.disconnect()
        usage = {row["key"]: row for row in (await server.usage())["data"]}
        async with server.client_of("scraper") as http:
            text = (await http.get("/metrics")).text
    assert usage["ann"]["cpu_seconds"] > 0
    assert usage["bob"]["cpu_seconds"] > 0
    assert 'ocs_key_cpu_seconds_total{key="ann",model="fake"}' in text
    assert 'ocs_key_requests_total{answer="computed",key="ann",model="fake"} 1.0' in text
    assert 'ocs_key_tokens_total{key="ann",kind="input",model="fake"}' in text
    assert sha("ann")[:16] not in text
