"""`GET /v1/usage`: every way of asking a model is counted for its key, once, and everybody sees their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from openai_cpu_server.answers.cache import AnswerCache
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import StoreBounds
from openai_cpu_server.api.application import ServedApplication, create_api
from openai_cpu_server.api.generation.answer_lookup import AnswerLookup
from openai_cpu_server.contract.figures import Amounts, Price
from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.telemetry import ModelTelemetry, Telemetry
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of, sha
from tests.api.serving import OPTIONS, client, embedding_model, new_engine, running, served
from tests.api.talking import MESSAGES, chat, complete, error_of
from tests.fakes import FAKE_EMBEDDER, FAKE_RERANKER
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

KEYS = {"ann": "", "bob": "", "root": "admin = true", "scraper": 'scopes = ["metrics"]'}
PRICES = {"fake": Price(input=1e6, cached=0.0, output=1e6)}
BOUNDS = StoreBounds(60, 1_000_000)


class House:
    """A model that generates, one that embeds, one that reranks; keys, jobs, and what they use."""

    def __init__(self, api: ServedApplication, jobs: Jobs, engine: FakeEngine, telemetry: Telemetry) -> None:
        self.run_row = api.run_row
        self.app = api.app
        self.jobs = jobs
        self.engine = engine
        self.telemetry = telemetry

    def ask(self, key: str) -> httpx.AsyncClient:
        return client(self.app, of(key))

    async def usage(self, by: str = "root", **query: str | list[str]) -> dict[str, Any]:
        async with self.ask(by) as http:
            answer = await http.get("/v1/usage", params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@asynccontextmanager
async def at_home(
    folder: Path, *, keys: KeyRing | None = None, remembers: bool = False
) -> AsyncIterator[House]:
    engine = FakeEngine()
    models = [
        served(engine).default,
        embedding_model(FakeEngine(FAKE_EMBEDDER), "vectors"),
        embedding_model(FakeEngine(FAKE_RERANKER), "judge"),
    ]
    for number, model in enumerate(models):
        model.content_digest = lambda number=number: f"file {number}"  # type: ignore[misc]
    registry = ModelRegistry(models)
    jobs = Jobs(open_database(str(folder / "jobs.db")), JobOptions(model="fake"))
    telemetry = Telemetry.new(model="fake")
    answer_lookup = None
    if remembers:
        answer_lookup = AnswerLookup(
            AnswerCache(
                SqliteAnswers.open(folder / "answers.db", BOUNDS),
                BOUNDS,
                telemetry.metrics,
                answer_s=DEADLINE_S,
            ),
            registry,
        )
    options = msgspec.structs.replace(OPTIONS, prices=PRICES)
    ring = key_ring(folder, **KEYS) if keys is None else keys
    api = create_api(
        registry, options, keys=ring, jobs=jobs, telemetry=telemetry, answer_lookup=answer_lookup
    )
    task = asyncio.create_task(jobs.run(api.run_row))
    try:
        yield House(api, jobs, engine, telemetry)
    finally:
        await api.settle()
        await jobs.close()
        await task


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with at_home(tmp_path) as one:
        yield one


Asking = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]
RESPONSE = {"model": "fake", "input": "hi", "max_output_tokens": 8, "temperature": 0, "store": False}
MESSAGE = {"model": "fake", "max_tokens": 8, "messages": MESSAGES, "temperature": 0}
RANKING = {"model": "judge", "query": "a", "documents": ["b", "c"]}


def posting(path: str, body: dict[str, object]) -> Asking:
    return lambda http: http.post(path, json=body)


WAYS: dict[str, Asking] = {
    "chat": chat,
    "chat streamed": lambda http: chat(http, stream=True, stream_options={"include_usage": True}),
    "completions": lambda http: complete(http, prompt=["a", "bc"], n=2),
    "responses": posting("/v1/responses", RESPONSE),
    "responses streamed": posting("/v1/responses", {**RESPONSE, "stream": True}),
    "messages": posting("/v1/messages", MESSAGE),
    "generate": posting("/v1/generate", {"prompt": "hi", "max_tokens": 8, "temperature": 0}),
    "embeddings": posting("/v1/embeddings", {"model": "vectors", "input": ["a", "bc"]}),
    "rerank": posting("/v1/rerank", RANKING),
}


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_counts_once_for_its_key(house: House, way: str) -> None:
    async with house.ask("ann") as http:
        answer = await WAYS[way](http)
        assert answer.status_code == 200, answer.text
    found = await house.usage()
    (row,) = found["data"]
    assert (row["key"], row["requests"]) == ("ann", 1)
    assert row["model"] == {"embeddings": "vectors", "rerank": "judge"}.get(way, "fake")
    assert row["input_tokens"] > 0
    assert (row["output_tokens"] > 0) == (row["model"] == "fake")
    assert (found["total"]["requests"], found["total"]["cost"]) == (1, row["cost"])
    if "streamed" not in way and way in ("chat", "completions", "embeddings"):
        usage = answer.json()["usage"]
        assert row["input_tokens"] == usage["prompt_tokens"]
        assert row["output_tokens"] == usage.get("completion_tokens", 0)


async def test_background_responses_and_rows_of_batches_count_for_their_key(house: House) -> None:
    async with house.ask("ann") as http:
        begun = await http.post("/v1/responses", json={**RESPONSE, "background": True, "store": True})
        assert begun.status_code == 200, begun.text
        await http.get(f"/v1/responses/{begun.json()['id']}?stream=true")  # until its end
    row = b'{"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}'
    assert (await house.run_row("/v1/chat/completions", row, "bob")).status == 200
    found = await house.usage(order="asc")
    assert [(one["key"], one["requests"]) for one in found["data"]] == [("ann", 1), ("bob", 1)]


async def test_everybody_sees_their_own_and_an_administrator_all(house: House) -> None:
    for key in ("ann", "bob", "bob"):
        async with house.ask(key) as http:
            await chat(http)
    assert [(row["key"], row["requests"]) for row in (await house.usage("ann"))["data"]] == [("ann", 1)]
    assert (await house.usage("bob", key="bob"))["total"]["requests"] == 2
    assert (await house.usage(key=["bob", "nobody"]))["total"]["requests"] == 2
    assert (await house.usage(group_by="model"))["data"][0]["requests"] == 3
    assert (await house.usage(group_by=""))["data"] == []
    async with house.ask("ann") as http:
        refused = await http.get("/v1/usage", params={"key": "bob"})
    assert (refused.status_code, error_of(refused)["code"]) == (403, "missing_scope")


async def test_a_server_without_keys_has_one_sum_for_all(tmp_path: Path) -> None:
    async with at_home(tmp_path, keys=KeyRing()) as house:
        async with house.ask("whatever") as http:
            await chat(http, user="carl")
        (row,) = (await house.usage())["data"]
        assert (row["key"], row["model"], row["requests"]) == ("", "fake", 1)


async def test_refused_calls_count_nothing_and_abandoned_ones_no_tokens(house: House) -> None:
    async with house.ask("ann") as http:
        await chat(http, temperature=9)
        await chat(http, model="nobody")
    assert (await house.usage())["data"] == []
    house.engine.goes_on.clear()
    body = {"messages": MESSAGES, "max_tokens": 8}
    async with exchange(house.app, "/v1/chat/completions", body, headers=of("ann")) as left:
        await eventually(lambda: bool(house.engine.requests()))
        left.disconnect()
    (row,) = (await house.usage())["data"]
    assert (row["requests"], row["input_tokens"], row["output_tokens"]) == (1, 0, 0)


async def test_answers_of_the_cache_count_as_such(tmp_path: Path) -> None:
    async with at_home(tmp_path, remembers=True) as house:
        async with house.ask("ann") as http:
            first = (await chat(http)).json()["usage"]
            await eventually(
                lambda: "ocs_answer_cache_stores_total 1.0" in str(house.telemetry.metrics.page())
            )
            assert (await chat(http)).headers["x-cache"] == "exact"
        (row,) = (await house.usage())["data"]
    assert (row["requests"], row["recalled_requests"]) == (1, 1)
    assert (row["input_tokens"], row["output_tokens"]) == (first["prompt_tokens"], first["completion_tokens"])
    assert row["recalled_input_tokens"] == row["input_tokens"]
    assert row["recalled_output_tokens"] == row["output_tokens"]
    assert row["cost"] == row["input_tokens"] + row["output_tokens"]


async def test_pages_go_on_behind_whoever_has_no_name(house: House) -> None:
    house.jobs.usage.add("", "fake", Amounts(requests=1))
    house.jobs.usage.add("Zoe", "fake", Amounts(requests=1))
    for by in ("key", "key,model", "day,key"):
        query = {"limit": "1", "order": "asc", "group_by": by}
        first = await house.usage(**query)
        rest = await house.usage(**query, after=first["last_id"])
        assert [row["key"] for row in first["data"] + rest["data"]] == ["", "Zoe"], by


async def test_cpu_seconds_are_shared_among_keys_and_told_to_prometheus(tmp_path: Path) -> None:
    """On a real engine process: also what was computed for a client that has left counts."""
    jobs = Jobs(open_database(str(tmp_path / "jobs.db")), JobOptions(model="fake"))
    telemetry = Telemetry.new(model="fake")
    async with running(new_engine(observer=ModelTelemetry(telemetry, "fake"))) as engine:
        keys = key_ring(tmp_path, **KEYS)
        api = create_api(served(engine), OPTIONS, keys=keys, jobs=jobs, telemetry=telemetry)
        house = House(api, jobs, FakeEngine(), telemetry)
        async with house.ask("ann") as http:
            await chat(http, max_tokens=30)
        body = {"messages": MESSAGES, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        async with exchange(api.app, "/v1/chat/completions", body, headers=of("bob")) as left:
            await left.chunk()
            left.disconnect()
        found = {row["key"]: row for row in (await house.usage())["data"]}
        async with house.ask("scraper") as http:
            text = (await http.get("/metrics")).text
    assert found["ann"]["cpu_seconds"] > 0
    assert found["bob"]["cpu_seconds"] > 0
    assert found["bob"]["cost"] is None
    assert 'ocs_key_cpu_seconds_total{key="ann",model="fake"}' in text
    assert 'ocs_key_requests_total{answer="computed",key="ann",model="fake"} 1.0' in text
    assert 'ocs_key_tokens_total{key="ann",kind="input",model="fake"}' in text
    assert sha("ann")[:16] not in text
    await jobs.close()
