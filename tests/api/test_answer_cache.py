"""The cache of answers in the API, beside what `exchanges/answer_cache.txt` has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from openai_cpu_server.answers.cache import AnswerCache
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import StoreBounds
from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.generation.answer_lookup import AnswerLookup, SimilarAnswers
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.routing.options import Cascade, RouterOptions, WhenStreaming
from openai_cpu_server.models.routing.router import ModelRouter
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.telemetry import Telemetry
from tests.api.asgi import exchange
from tests.api.fake_engine import READY, FakeEngine
from tests.api.serving import client, embedding_model, named, num_live
from tests.api.sockets import CHAT_BODY, content, opened
from tests.api.talking import chat, error_of
from tests.fakes import FAKE_EMBEDDER
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

BOUNDS = StoreBounds(60, 1_000_000)


class Cached:
    """A small and a large model, one that embeds, a cascade between the two, and a cache of answers."""

    def __init__(self, least: float | None = None) -> None:
        self.engine, self.large = FakeEngine(), FakeEngine(text="large")
        self.vectors = FakeEngine(FAKE_EMBEDDER)
        self.files = {"fake": "file 1", "large": "file 2", "vectors": "file 3"}
        models = [
            self.known(named(self.engine, "fake")),
            self.known(named(self.large, "large")),
            self.known(embedding_model(self.vectors, "vectors")),
        ]
        cascade = Cascade(small="small", large="large", mean_logprob=-0.5, when_streaming=WhenStreaming.HOLD)
        routes = {"small": "fake", "large": "large"}
        router = RouterOptions(names=("auto",), routes=routes, otherwise="small", way=cascade)
        self.models = ModelRegistry(models, [ModelRouter(router)])
        self.telemetry = Telemetry.new(model="fake")
        self.store = SqliteAnswers.open(None, BOUNDS)
        self.cache = AnswerCache(self.store, BOUNDS, self.telemetry.metrics, answer_s=DEADLINE_S)
        similar = SimilarAnswers("vectors", least) if least is not None else None
        self.answer_lookup = AnswerLookup(self.cache, self.models, similar)
        options = ApiOptions(compares_turns=least is not None)
        self.api = create_api(
            self.models, options, telemetry=self.telemetry, answer_lookup=self.answer_lookup
        )
        self.app: Starlette = self.api.app

    def known(self, model: ServedModel) -> ServedModel:
        model.content_digest = lambda: self.files[model.name]
        return model

    @property
    def metrics(self) -> str:
        return self.telemetry.metrics.page().decode()

    def counted(self, result: str) -> int:
        start = f'ocs_answer_cache_requests_total{{result="{result}"}} '
        found = [line for line in self.metrics.splitlines() if line.startswith(start)]
        return int(float(found[0].removeprefix(start))) if found else 0

    async def kept(self, number: int = 1) -> None:
        """Answers are written while the server goes on."""
        await eventually(lambda: f"ocs_answer_cache_stores_total {number}.0" in self.metrics)


@pytest.fixture
def cached() -> Cached:
    return Cached()


@pytest.fixture
async def http(cached: Cached) -> AsyncIterator[httpx.AsyncClient]:
    async with client(cached.app) as one:
        yield one


async def test_websockets_and_rows_of_batches_share_answers_which_are_counted(
    cached: Cached, http: httpx.AsyncClient
) -> None:
    first = await chat(http)
    await cached.kept()
    async with opened(cached.app) as socket:
        socket.ask("r", stream=True)
        heard = (await socket.until_end("r"))["r"]
    assert heard[-1]["headers"]["x-cache"] == "exact"
    assert content(heard) == first.json()["choices"][0]["message"]["content"]
    row = await cached.api.run_row("/v1/chat/completions", json.dumps(CHAT_BODY).encode(), "")
    assert json.loads(row.body)["choices"] == first.json()["choices"]
    assert (cached.counted("miss"), cached.counted("exact")) == (1, 2)
    assert "ocs_answer_cache_output_tokens_total 16.0" in cached.metrics
    assert "ocs_answer_cache_entries 1.0" in cached.metrics


async def test_a_file_that_has_changed_answers_itself(cached: Cached, http: httpx.AsyncClient) -> None:
    """Of one that is not what its model was made of nothing is known."""
    cached.models.default.content_digest = lambda: None
    said = [(await chat(http)).headers["x-cache"] for _ in range(2)]
    for name in ("file 1", "another"):
        cached.files["fake"] = name
        cached.models.replace(cached.models.default, cached.known(named(cached.engine, "fake")))
        said.append((await chat(http)).headers["x-cache"])
        await cached.kept(len(said) - 2)
    assert said == ["bypass", "bypass", "miss", "miss"]


async def test_what_was_cut_is_not_kept(cached: Cached, http: httpx.AsyncClient) -> None:
    """By the client, by a time limit, by the end of the context, or in a loop."""
    cached.engine.goes_on.clear()
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "stream": True}
    async with exchange(cached.app, "/v1/chat/completions", body) as left:
        await eventually(lambda: num_live(cached.engine) == 1)
        left.disconnect()
    late = await chat(http, timeout=0.01)
    assert late.status_code == 408
    cached.engine.goes_on.set()
    long = [{"role": "user", "content": "x" * 4080}]
    cut = await chat(http, messages=long, max_tokens=None, ignore_eos=True)
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    cached.engine.text = "x" * 8000
    loop = await chat(http, messages=[{"role": "user", "content": "again"}], max_tokens=2000)
    assert loop.json()["choices"][0]["ended_by"] == "repetition"
    cached.engine.text = " ".join(map(str, range(2000)))
    beyond = {
        "model": "fake",
        "temperature": 0,
        "messages": [{"role": "user", "content": "zz"}],
        "max_tokens": 10**5,
    }
    said = (await http.post("/v1/messages", json=beyond)).json()
    assert said["stop_reason"] == "model_context_window_exceeded"
    await cached.cache.clear()  # behind all that is being written
    assert "ocs_answer_cache_stores_total 0.0" in cached.metrics


async def test_two_at_once_are_both_computed(cached: Cached, http: httpx.AsyncClient) -> None:
    cached.engine.goes_on.clear()
    asking = asyncio.gather(chat(http), chat(http))
    await eventually(lambda: num_live(cached.engine) == 2)
    cached.engine.goes_on.set()
    answers = await asking
    assert [answer.headers["x-cache"] for answer in answers] == ["miss", "miss"]
    assert answers[0].json()["choices"] == answers[1].json()["choices"]
    await cached.kept(2)
    assert (await cached.store.size()).entries == 1


async def test_a_cascades_answers_are_those_of_the_model_that_gave_them(
    cached: Cached, http: httpx.AsyncClient
) -> None:
    """The small one's answer is judged again each time, by heart."""
    first = await chat(http, model="auto")
    await cached.kept(2)
    for engine in (cached.engine, cached.large):
        engine.goes_on.clear()
    again = await chat(http, model="auto")
    assert (first.headers["x-cache"], again.headers["x-cache"]) == ("miss", "exact")
    assert again.headers["x-routed-model"] == "large"
    assert again.headers["x-routed-why"] == first.headers["x-routed-why"]
    assert again.json()["choices"][0]["message"]["content"] == "large"
    assert (await chat(http, model="large")).headers["x-cache"] == "exact"


async def test_nothing_is_cleared_where_not_all_can_be(cached: Cached, http: httpx.AsyncClient) -> None:
    engines = (cached.engine, cached.large, cached.vectors)
    await chat(http)
    await cached.kept()
    cached.large.base_status = msgspec.structs.replace(READY, state=EngineState.RESTARTING, reason="It died.")
    refused = await http.delete("/v1/cache")
    assert (refused.status_code, error_of(refused)["code"]) == (503, "engine_unavailable")
    assert [engine.num_cleared for engine in engines] == [0, 0, 0]
    assert (await chat(http)).headers["x-cache"] == "exact"
    cached.large.base_status = READY
    assert (await http.delete("/v1/cache")).status_code == 204
    assert [engine.num_cleared for engine in engines] == [1, 1, 1]
    assert (await chat(http)).headers["x-cache"] == "miss"


async def test_rows_of_batches_get_no_similar_answers() -> None:
    """Nobody would see that they are. The fake embeds texts by their letters."""
    similar, path = Cached(least=0.9), "/v1/chat/completions"

    def asked(text: str) -> dict[str, object]:
        return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0}

    async with client(similar.app) as http:
        await http.post(path, json=asked("aaaaaaaaaaaa"))
        await similar.kept()
        await similar.api.run_row(path, json.dumps(asked("aaaaaaaaaaab")).encode(), "")
        older = {"prompts": ["aaaaaaaaaaabb"], "max_tokens": 8, "temperature": 0}
        await http.post("/v1/generate/batch", json=older)
    assert (similar.counted("semantic"), similar.counted("miss")) == (0, 3)
