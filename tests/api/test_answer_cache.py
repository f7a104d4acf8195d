"""The cache of answers in the API: every family and way of asking, what is never shared, and who pays."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from openai_cpu_server.answers.cache import AnswerCache
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import StoreBounds
from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.asking.answer_lookup import AnswerLookup, SimilarAnswers
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.http.key_file import KeyRing
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.routing.options import Cascade, RouterOptions, WhenStreaming
from openai_cpu_server.models.routing.router import ModelRouter
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.watch import Watch
from tests.api.asgi import exchange
from tests.api.fake_engine import READY, FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import client, embedding_model, named, num_live
from tests.api.sockets import content, opened
from tests.api.talking import chat, complete, error_of, events
from tests.fakes import FAKE_EMBEDDER
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

BOUNDS = StoreBounds(60, 1_000_000)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
FORM = {"response_format": {"type": "json_object"}}
DRAWN = {"seed": None, "temperature": 1}


class Cached:
    """A small and a large model, one that embeds, a cascade between the two, and a cache of answers."""

    def __init__(self, *, least: float | None = None, keys: KeyRing | None = None) -> None:
        self.engine, self.large = FakeEngine(), FakeEngine(says="large")
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
        self.watch = Watch.new(model="fake")
        self.path = Path(tempfile.mkdtemp()) / "answers.db"
        self.store = SqliteAnswers.open(self.path, BOUNDS)
        self.cache = AnswerCache(self.store, BOUNDS, self.watch.metrics.answers)
        similar = SimilarAnswers("vectors", least) if least is not None else None
        self.recall = AnswerLookup(self.cache, self.models, similar)
        self.api = create_api(
            self.models,
            ApiOptions(compares_turns=least is not None),
            keys=keys,
            watch=self.watch,
            recall=self.recall,
        )
        self.app: Starlette = self.api.app

    def known(self, model: ServedModel) -> ServedModel:
        model.content_digest = lambda: self.files[model.name]
        return model

    @property
    def metrics(self) -> str:
        return self.watch.metrics.page().decode()

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


@pytest.fixture
def similar() -> Cached:
    return Cached(least=0.9)


def same(one: httpx.Response, other: httpx.Response) -> bool:
    """But for what is new with each call, and where the time went."""
    new = ("id", "created", "timings", "usage", "metrics")
    bodies = [{k: v for k, v in each.json().items() if k not in new} for each in (one, other)]
    return bodies[0] == bodies[1]


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


async def generate(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/v1/generate", json={"prompt": "hi", "max_tokens": 8, "temperature": 0, **fields})


# -- the same question ------------------------------------------------------------------------------------


MANY = {"prompt": ["a", "b"], "n": 2, "best_of": 3, "temperature": 1, "echo": True, "logprobs": 1}


@pytest.mark.parametrize(
    ("ask", "fields"),
    [
        (chat, {"max_completion_tokens": 8, "cache": True}),
        (chat, {"n": 3, "temperature": 1, "stop": "x"}),
        (chat, {"logprobs": True, "top_logprobs": 2, "logit_bias": {"99": 1, "100": 2}}),
        (chat, {"tools": [TOOL]}),
        (chat, FORM),
        (complete, MANY),
        (generate, {}),
    ],
)
async def test_the_same_question_is_answered_again_without_the_model(
    cached: Cached,
    http: httpx.AsyncClient,
    ask: Callable[..., Awaitable[httpx.Response]],
    fields: dict[str, object],
) -> None:
    cached.engine.says = "{}" if fields is FORM else None
    first = await ask(http, **fields)
    await cached.kept()
    cached.engine.goes_on.clear()
    again = await ask(http, **fields)
    assert (first.status_code, again.status_code) == (200, 200)
    assert (first.headers["x-cache"], again.headers["x-cache"]) == ("miss", "exact")
    assert same(first, again)
    assert first.json()["id"] != again.json()["id"]
    if usage := first.json().get("usage"):
        used = again.json()["usage"]
        assert used["completion_tokens"] == usage["completion_tokens"]
        assert used["prompt_tokens_details"] == {"cached_tokens": usage["prompt_tokens"]}
        assert again.json()["timings"]["queue_ms"] == 0
    cached.engine.goes_on.set()
    assert (await ask(http, **{**fields, "cache": False})).headers["x-cache"] == "bypass"


async def test_a_streams_answer_is_kept_and_streams_and_whole_answers_are_made_of_the_same(
    cached: Cached, http: httpx.AsyncClient
) -> None:
    streams = []
    for said in ("miss", "exact"):
        stream = await chat(http, stream=True, stream_options={"include_usage": True})
        assert stream.headers["x-cache"] == said
        assert stream.text.endswith("data: [DONE]\n\n")
        streams.append([event["choices"] for event in events(stream)])
        await cached.kept()
    assert streams[0] == streams[1]
    assert len(streams[0]) > 8  # as many chunks as the model made
    whole = await chat(http)
    text = "".join(c["delta"].get("content") or "" for choices in streams[0] for c in choices)  # type: ignore[attr-defined]
    assert (whole.headers["x-cache"], text_of(whole)) == ("exact", text)


async def test_websockets_and_batches_share_the_answers(cached: Cached, http: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
    first = await chat(http)
    await cached.kept()
    async with opened(cached.app) as socket:
        socket.ask("r", **body, stream=True)
        heard = (await socket.until_end("r"))["r"]
    assert heard[-1]["headers"]["x-cache"] == "exact"
    assert content(heard) == first.json()["choices"][0]["message"]["content"]
    row = await cached.api.run_row("/v1/chat/completions", json.dumps(body).encode(), "")
    assert json.loads(row.body)["choices"] == first.json()["choices"]
    older = {"prompts": ["hi", "hi"], "max_tokens": 8, "temperature": 0}
    assert (await http.post("/v1/generate/batch", json=older)).status_code == 200
    assert cached.counted("exact") == 4


# -- what is never shared ---------------------------------------------------------------------------------


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


async def test_adapters_and_versions_of_one_have_answers_of_their_own(
    cached: Cached, http: httpx.AsyncClient
) -> None:
    said = []
    for digest in ("1", "2"):
        await cached.engine.load_adapter(Adapter(name="poet", path="p", digest=digest))
        for fields in ({"lora": "poet"}, {"model": "fake:poet"}, {}):
            answer = await chat(http, **fields)
            said.append((answer.headers["x-cache"], text_of(answer)))
            if said[-1][0] == "miss":
                await cached.kept([word for word, _ in said].count("miss"))
    assert [word for word, _ in said] == ["miss", "exact", "miss", "miss", "exact", "exact"]
    assert len({text for _, text in said}) == 3


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    limits = "tokens_per_minute = 40\nrequests_per_minute = 3"
    return key_ring(tmp_path, ann=limits, bob="", root="admin = true")


async def asked_with(cached: Cached, key: str, text: str) -> httpx.Response:
    async with client(cached.app, of(key)) as http:
        return await chat(http, messages=[{"role": "user", "content": text}])


async def test_a_key_has_answers_of_its_own_and_pays_requests_but_no_tokens(keys: KeyRing) -> None:
    """No answer of another key is similar, either."""
    cached = Cached(least=0.9, keys=keys)
    said = [await asked_with(cached, "ann", ONE)]
    await cached.kept()
    for key, text in (("root", ONE), ("bob", ALIKE), ("ann", ONE), ("ann", ALIKE), ("ann", ONE)):
        said.append(await asked_with(cached, key, text))
    found = [answer.headers.get("x-cache") for answer in said]
    assert found == ["miss", "miss", "miss", "exact", ALMOST, None]
    tokens = "x-ratelimit-remaining-tokens"
    assert int(said[0].headers[tokens]) <= int(said[4].headers[tokens])
    assert (said[5].status_code, error_of(said[5])["type"]) == (429, "requests")


async def test_without_keys_everybody_is_one(cached: Cached) -> None:
    await asked_with(cached, "one", ONE)
    await cached.kept()
    assert (await asked_with(cached, "two", ONE)).headers["x-cache"] == "exact"


# -- what is not kept -------------------------------------------------------------------------------------


async def test_a_client_may_want_none_of_it(cached: Cached, http: httpx.AsyncClient) -> None:
    for fields in ({"cache": False}, DRAWN):
        for _ in range(2):
            assert (await chat(http, **fields)).headers["x-cache"] == "bypass"
    assert "ocs_answer_cache_stores_total 0.0" in cached.metrics
    await chat(http)
    await cached.kept()
    assert (await chat(http, cache=False)).headers["x-cache"] == "bypass"
    assert cached.counted("bypass") == 5


async def test_what_was_cut_is_not_kept(cached: Cached, http: httpx.AsyncClient) -> None:
    """By the client, by a time limit, or by the end of the context."""
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
    cached.engine.says = "x" * 8000
    assert (await message(cached, OTHER, max_tokens=100_000)).json()["stop_reason"] != "end_turn"
    await cached.cache.clear()  # behind all that is being written
    assert "ocs_answer_cache_stores_total 0.0" in cached.metrics


async def test_two_at_once_are_both_computed(cached: Cached, http: httpx.AsyncClient) -> None:
    cached.engine.goes_on.clear()
    asking = asyncio.gather(chat(http), chat(http))
    await eventually(lambda: num_live(cached.engine) == 2)
    cached.engine.goes_on.set()
    answers = await asking
    assert [answer.headers["x-cache"] for answer in answers] == ["miss", "miss"]
    assert same(*answers)
    await cached.kept(2)
    assert (await cached.store.size()).entries == 1


# -- the model need not be there --------------------------------------------------------------------------


async def test_a_model_that_sleeps_is_not_woken(cached: Cached, http: httpx.AsyncClient) -> None:
    await chat(http)
    await cached.kept()
    cached.engine.told = msgspec.structs.replace(READY, state=EngineState.ASLEEP)
    assert (await chat(http)).headers["x-cache"] == "exact"
    assert (await chat(http, max_tokens=7)).status_code == 503  # the fake does not wake


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


# -- clearing and counting --------------------------------------------------------------------------------


async def test_it_is_counted_and_can_be_cleared(cached: Cached, http: httpx.AsyncClient) -> None:
    await chat(http)
    await cached.kept()
    await chat(http)
    stats = (await http.get("/v1/cache/stats")).json()["answers"]
    assert (stats["entries"], stats["bytes"] > 100) == (1, True)
    assert (cached.counted("miss"), cached.counted("exact")) == (1, 1)
    assert "ocs_answer_cache_output_tokens_total 8.0" in cached.metrics
    assert "ocs_answer_cache_entries 1.0" in cached.metrics
    assert (await http.delete("/v1/cache?only=prompts")).status_code == 204
    assert (await chat(http)).headers["x-cache"] == "exact"
    assert (await http.delete("/v1/cache?only=answers")).status_code == 204
    assert (await chat(http)).headers["x-cache"] == "miss"
    await cached.kept(2)
    assert (await http.delete("/v1/cache")).status_code == 204
    assert (await http.get("/v1/cache/stats")).json()["answers"] == {"entries": 0, "bytes": 0}
    wrong = await http.delete("/v1/cache?only=everything")
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "only")


async def test_nothing_is_cleared_where_not_all_can_be(cached: Cached, http: httpx.AsyncClient) -> None:
    engines = (cached.engine, cached.large, cached.vectors)
    await chat(http)
    await cached.kept()
    cached.large.told = msgspec.structs.replace(READY, state=EngineState.RESTARTING, reason="It died.")
    refused = await http.delete("/v1/cache")
    assert (refused.status_code, error_of(refused)["code"]) == (503, "engine_unavailable")
    assert [engine.num_cleared for engine in engines] == [0, 0, 0]
    assert (await chat(http)).headers["x-cache"] == "exact"
    cached.large.told = READY
    assert (await http.delete("/v1/cache")).status_code == 204
    assert [engine.num_cleared for engine in engines] == [1, 1, 1]
    assert (await chat(http)).headers["x-cache"] == "miss"


# -- similar questions ------------------------------------------------------------------------------------

ONE, ALIKE, OTHER = "aaaaaaaaaaaa", "aaaaaaaaaaab", "zz"
"""The fake embeds texts by their letters."""
BRIEF = {"role": "system", "content": "Be brief."}


async def say(cached: Cached, text: str, *before: dict[str, str], **fields: object) -> httpx.Response:
    async with client(cached.app) as http:
        return await chat(http, messages=[*before, {"role": "user", "content": text}], **fields)


async def message(cached: Cached, text: str, **fields: object) -> httpx.Response:
    """In Anthropic's words, whose limits are upper bounds, which may lie beyond the context."""
    body = {"model": "fake", "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}
    async with client(cached.app) as http:
        return await http.post("/v1/messages", json=body)


MISS, ALMOST = "miss", "semantic; similarity=0.99"
STREAM, FREE, TWO, THREE, EIGHT = {"stream": True}, *({"max_tokens": most} for most in (None, 2, 3, 8))
LARGE = {"model": "large"}
WITH_F, WITH_G = {"tools": [TOOL]}, {"tools": [{"type": "function", "function": {"name": "g"}}]}
STORIES: dict[str, tuple[Any, ...]] = {
    "a similar question": (say, (ONE, {}, MISS), (ALIKE, {}, ALMOST), (OTHER, {}, MISS)),
    "drawn anew each time": (say, (ONE, DRAWN, MISS), (ALIKE, DRAWN, ALMOST), (OTHER, DRAWN, MISS)),
    "as a stream": (say, (ONE, STREAM, MISS), (ALIKE, STREAM, ALMOST)),
    "another limit": (say, (ONE, FREE, MISS), (ALIKE + "a", FREE, ALMOST), (ALIKE, EIGHT, MISS)),
    "Anthropic's limits": (message, (ONE, THREE, MISS), (ALIKE, THREE, ALMOST), (ALIKE, TWO, MISS)),
    "another tool": (say, (ONE, WITH_F, MISS), (ALIKE, WITH_G, MISS), (ALIKE, WITH_F, ALMOST)),
}
"""Ways of asking, and what is asked one after the other, with what the cache does."""


@pytest.mark.parametrize("name", STORIES)
async def test_a_similar_question_gets_the_same_answer(similar: Cached, name: str) -> None:
    ask, *steps = STORIES[name]
    similar.engine.says = "well" if FREE in steps[0] else None  # else the context would cut it
    answers = []
    for text, fields, expected in steps:
        answers.append(await ask(similar, text, **fields))
        assert (answers[-1].status_code, answers[-1].headers["x-cache"]) == (200, expected), text
        if expected == MISS:
            await similar.kept([answer.headers["x-cache"] for answer in answers].count(MISS))
    assert similar.counted("semantic") == 1
    if name == "a similar question":
        first, again, other = answers
        assert (text_of(again), text_of(other) != text_of(first)) == (text_of(first), True)
        assert again.json()["usage"]["prompt_tokens"] == first.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("least", [None, 0.9], ids=["the same words", "similar words"])
async def test_but_for_the_last_turn_nothing_may_differ(least: float | None) -> None:
    """tests/answers/test_question.py has all fields of a request."""
    cached = Cached(least=least)
    await say(cached, ONE)
    await cached.kept()
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = ONE if least is None else ALIKE
    changes: list[tuple[Any, Any]] = [([BRIEF], {}), (talk, {}), ([], WITH_F), ([], FORM), ([], LARGE)]
    for before, fields in changes:
        assert (await say(cached, text, *before, **fields)).headers["x-cache"] == "miss"
    said = (await say(cached, ALIKE)).headers["x-cache"]
    assert said == ("miss" if least is None else ALMOST), "other words are another question"


async def test_a_turn_that_cannot_be_read_as_a_whole_is_not_compared(similar: Cached) -> None:
    """The model reads 64 tokens: two that begin alike would be the same to it."""
    for end in "xy":
        answer = await say(similar, "a" * 70 + end, **DRAWN)
        assert answer.headers["x-cache"] == "bypass"
        assert (await say(similar, "a" * 70 + end)).headers["x-cache"] == "miss"


async def test_without_the_model_that_embeds_all_is_computed(similar: Cached) -> None:
    await say(similar, ONE)
    await similar.kept()
    similar.vectors.told = msgspec.structs.replace(READY, state=EngineState.FAILED)
    assert (await say(similar, ALIKE)).headers["x-cache"] == "miss"
    assert (await say(similar, ONE)).headers["x-cache"] == "exact"


async def test_rows_of_batches_get_no_similar_answers(similar: Cached) -> None:
    """Nobody would see that they are."""
    await say(similar, ONE)
    await similar.kept()
    body = {"messages": [{"role": "user", "content": ALIKE}], "max_tokens": 8, "temperature": 0}
    await similar.api.run_row("/v1/chat/completions", json.dumps(body).encode(), "")
    async with client(similar.app) as http:
        await http.post(
            "/v1/generate/batch", json={"prompts": [ALIKE + "b"], "max_tokens": 8, "temperature": 0}
        )
    assert (similar.counted("semantic"), similar.counted("miss")) == (0, 3)
