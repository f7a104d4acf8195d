"""Routers in the API: rules, cascades, batches, sockets, keys, and clients that leave."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import ServedApplication, create_api
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.routing.options import (
    Cascade,
    Classifier,
    Examples,
    RouterOptions,
    Rule,
    Rules,
    Shares,
    Stickiness,
    Way,
    WhenStreaming,
)
from openai_cpu_server.models.routing.router import ModelRouter
from openai_cpu_server.observe.telemetry import Telemetry
from tests.api.asgi import exchange
from tests.api.fake_engine import READY, FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, embedding_model, named, num_live
from tests.api.sockets import content, opened
from tests.api.talking import chat, complete, error_of, events, messages_error_of
from tests.fakes import FAKE_EMBEDDER
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

ROUTES = {"small": "little", "large": "big"}
SURE, UNSURE = -2.0, -0.5
"""The fake's tokens have a log-probability of -1 each."""
FORM = {"response_format": {"type": "json_object"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
HELLO = {"role": "user", "content": "hi"}
CALL = {"name": "f", "arguments": "{}"}
FUNCTION_CALL = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": CALL}]}
TOOL_USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}


def cascade(threshold: float, when: WhenStreaming = WhenStreaming.HOLD) -> Cascade:
    return Cascade(small="small", large="large", mean_logprob=threshold, when_streaming=when)


class House:
    """A small and a large model, one that embeds, and routers."""

    def __init__(self, *ways: tuple[str, Way], keys: KeyRing | None = None) -> None:
        self.little, self.big = FakeEngine(text="little me"), FakeEngine(text="big me")
        vectors = embedding_model(FakeEngine(FAKE_EMBEDDER), "vectors")
        models = [named(self.little, "little"), named(self.big, "big"), vectors]
        routers = [
            ModelRouter(
                RouterOptions(names=(name, f"{name}-too"), routes=_routes(name), otherwise="small", way=way)
            )
            for name, way in ways
        ]
        self.telemetry = Telemetry.new(model="little")
        self.api: ServedApplication = create_api(
            ModelRegistry(models, routers), OPTIONS, telemetry=self.telemetry, keys=keys
        )
        self.app: Starlette = self.api.app

    @property
    def metrics(self) -> str:
        return self.telemetry.metrics.page().decode()

    def counted(self, model: str, why: str, router: str = "auto") -> bool:
        line = f'ocs_routed_requests_total{{model="{model}",router="{router}",why="{why}"}}'
        return line in self.metrics


def _routes(name: str) -> dict[str, str]:
    if name == "french":
        return {**ROUTES, "small": "little:french"}
    return {**ROUTES, "small": "auto"} if name == "outer" else ROUTES


async def send(house: House, **fields: object) -> httpx.Response:
    async with client(house.app) as http:
        return await chat(http, **{"model": "auto", "max_tokens": 40, **fields})


def text(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def why(response: httpx.Response) -> tuple[str, str]:
    return response.headers["x-routed-model"], response.headers["x-routed-why"]


# -- ways of choosing -------------------------------------------------------------------------------------


async def test_rules_decide_and_a_header_names_the_rule() -> None:
    rules = Rules((Rule(route="large", tools=True), Rule(route="large", prompt_tokens_over=20)))
    house = House(("auto", rules))
    plain, with_tools = await send(house), await send(house, tools=[TOOL])
    long = await send(house, messages=[{"role": "user", "content": "a" * 21}])
    assert (text(plain), plain.json()["model"]) == ("little me", "auto")
    assert why(plain) == ("little", "small: no rule holds")
    assert why(with_tools) == ("big", "large: rule 1")
    assert (text(long), why(long)) == ("big me", ("big", "large: rule 2"))
    assert house.counted("big", "rule")
    assert house.counted("little", "otherwise")


async def test_a_classifier_names_the_route_and_the_request_is_in_its_prompt() -> None:
    classifier = partial(Classifier, model="big", prompt="Which? {request}")
    house = House(("auto", classifier(timeout_s=DEADLINE_S)), ("hasty", classifier(timeout_s=0.05)))
    house.big.goes_on.clear()
    assert why(await send(house, model="hasty")) == ("little", "small: big: no answer within 0.05 s")
    await eventually(lambda: num_live(house.big) == 0)
    house.big.goes_on.set()
    house.big.says = "large"
    found = await send(house)
    assert why(found) == ("big", "large: big says so")
    house.big.says = "nonsense"
    assert why(await send(house)) == ("little", "small: big has named no route")
    house.big.told = msgspec.structs.replace(READY, state=EngineState.FAILED, reason="it is broken")
    gone = await send(house)
    assert text(gone) == "little me"
    assert why(gone) == ("little", "small: big: The engine is failed: it is broken.")
    assert house.counted("little", "unavailable")


async def test_the_nearest_example_decides() -> None:
    texts = (("small", "hi"), ("large", "prove it"))
    way = Examples(model="vectors", texts=texts, least_similarity=0.999, timeout_s=5)
    house = House(("auto", way))
    same = await send(house, messages=[{"role": "user", "content": "prove it"}])
    assert why(same) == ("big", "large: example of 'large' (similarity=1.00)")
    unlike = await send(house, messages=[{"role": "user", "content": "zzzzzzzzzzzz"}])
    assert why(unlike)[0] == "little"
    assert why(unlike)[1].startswith("small: similarity=")


async def test_shares_stick_to_a_user() -> None:
    way = Shares(weights=(("small", 1), ("large", 1)), sticky=Stickiness.USER)
    house = House(("auto", way))
    async with client(house.app) as http:
        first, again = [
            [why(await chat(http, model="auto", user=str(user)))[0] for user in range(20)] for _ in range(2)
        ]
    assert first == again
    assert set(first) == {"little", "big"}


async def test_a_router_may_lead_to_another() -> None:
    rules = Rules((Rule(route="large", max_tokens_over=10),))
    house = House(("auto", rules), ("outer", Rules((Rule(route="large", tools=True),))))
    found = await send(house, model="outer")
    assert why(found) == ("big", "small: no rule holds; large: rule 1")
    assert house.counted("big", "rule", router="outer")


# -- cascades ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("threshold", "answer", "route", "label"),
    [
        (SURE, "little me", ("little", "small: mean_logprob=-1.00"), "sure"),
        (UNSURE, "big me", ("big", "small: mean_logprob=-1.00"), "unsure"),
    ],
)
async def test_a_cascade(
    threshold: float, answer: str, route: tuple[str, str], label: str, stream: bool
) -> None:
    """Headers name the final route even of a stream, and the answer has no log-probabilities."""
    house = House(("auto", cascade(threshold)))
    response = await send(
        house, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )
    assert why(response) == route
    assert house.counted(route[0], label)
    if not stream:
        assert text(response) == answer
        assert response.json()["choices"][0]["logprobs"] is None
        assert response.json()["usage"]["completion_tokens"] == len(answer) + 1
        return
    chunks = events(response)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]  # type: ignore[attr-defined]
    assert "".join(delta.get("content") or "" for delta in deltas) == answer
    assert response.text.endswith("data: [DONE]\n\n")


async def test_a_truncated_structured_answer_is_replaced_by_the_large_models() -> None:
    house = House(("auto", cascade(SURE)))
    house.little.says = '{"a": 1}'
    house.big.says = "{}"
    cut = await send(house, max_tokens=3, **FORM)
    whole = await send(house, **FORM)
    free = await send(house, max_tokens=3)
    assert why(cut) == ("big", "small: the answer was cut")
    assert (why(whole)[0], text(whole)) == ("little", '{"a": 1}')
    assert (why(free)[0], text(free)) == ("little", '{"a')


async def test_streams_may_go_to_the_large_model_at_once() -> None:
    house = House(("auto", cascade(SURE, WhenStreaming.LARGE)))
    assert why(await send(house, stream=True)) == ("big", "large: a stream")
    assert why(await send(house))[0] == "little"


async def test_the_large_model_answers_if_the_small_one_cannot() -> None:
    house = House(("auto", cascade(SURE)))
    house.little.told = msgspec.structs.replace(READY, state=EngineState.FAILED, reason="it is broken")
    broken = await send(house)
    assert (text(broken), why(broken)[0]) == ("big me", "big")
    assert house.counted("big", "failed")
    house.little.base_status = READY
    info = house.little.info
    assert info is not None
    house.little.info = msgspec.structs.replace(info, context_trained=20)
    long = await send(house, messages=[{"role": "user", "content": "a" * 30}])
    assert (text(long), why(long)[0]) == ("big me", "big")
    assert house.counted("big", "too_long")


async def test_the_large_model_answers_without_the_adapter_of_the_small_route() -> None:
    house = House(("french", cascade(SURE)))
    await house.little.load_adapter(Adapter(name="french", path="a.gguf", digest="d"))
    there = await send(house, model="french")
    assert (text(there), why(there)[0]) == ("little me", "little:french")
    assert 'ocs_adapter_tokens_total{adapter="little:french",kind="output"} 10.0' in house.metrics
    house.little.unload_adapter("french")
    gone = await send(house, model="french")
    assert (text(gone), why(gone)[0]) == ("big me", "big")
    assert house.counted("big", "failed", "french")


async def test_completions_are_routed_and_scores_of_prompts_come_from_the_large_model() -> None:
    house = House(("auto", cascade(SURE)))
    async with client(house.app) as http:
        sure = await complete(http, model="auto", n=2, max_tokens=20)
        scored = await complete(http, model="auto", max_tokens=0, echo=True, logprobs=0)
    assert [choice["text"] for choice in sure.json()["choices"]] == ["little me", "little me"]
    assert why(scored) == ("big", "large: there is no output to judge")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_trial(stream: bool) -> None:
    house = House(("auto", cascade(SURE)))
    house.little.goes_on.clear()
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    async with exchange(house.app, "/v1/chat/completions", body) as one:
        await eventually(lambda: num_live(house.little) == 1)
        one.disconnect()
    await eventually(lambda: num_live(house.little) == 0)
    assert num_live(house.big) == 0
    assert "ocs_routed_requests_total{" not in house.metrics


async def test_a_trial_ends_in_time_and_can_be_ended_by_an_administrator() -> None:
    house = House(("auto", cascade(SURE)))
    house.little.goes_on.clear()
    late = await send(house, timeout=0.05)
    assert (late.status_code, num_live(house.big)) == (408, 0)
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
    async with exchange(house.app, "/v1/chat/completions", body) as one, client(house.app) as http:
        await eventually(lambda: num_live(house.little) == 1)
        (card,) = (await http.get("/v1/requests")).json()["data"]
        assert (await http.delete(f"/v1/requests/{card['id']}")).status_code == 200
        assert b"request_cancelled" in (await one.chunk() or b"")
    assert num_live(house.big) == 0


# -- batches, sockets and keys ----------------------------------------------------------------------------


async def test_rows_of_batches_are_routed() -> None:
    house = House(("auto", cascade(UNSURE)))
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40}
    answer = await house.api.run_row("/v1/chat/completions", json.dumps(body).encode(), "")
    assert (answer.status, b"big me" in answer.body) == (200, True)
    assert house.counted("big", "unsure")


async def test_a_socket_is_routed_and_may_cancel_a_trial() -> None:
    house = House(("auto", cascade(SURE)))
    house.little.goes_on.clear()
    async with opened(house.app) as socket:
        socket.ask("one", model="auto")
        await eventually(lambda: num_live(house.little) == 1)
        socket.send({"cancel": "one"})
        (ended,) = (await socket.until_end("one"))["one"]
        assert ended["error"]["code"] == "request_cancelled"
        house.little.goes_on.set()
        socket.ask("two", model="auto", stream=False, max_tokens=40)
        answer, done = (await socket.until_end("two"))["two"]
        socket.ask("three", model="auto", max_tokens=40)
        chunks = (await socket.until_end("three"))["three"]
        house.little.goes_on.clear()
        socket.ask("four", model="auto")
        await eventually(lambda: num_live(house.little) == 1)
    await eventually(lambda: num_live(house.little) == 0)
    assert answer["choices"][0]["message"]["content"] == content(chunks) == "little me"
    assert done["headers"]["x-routed-model"] == "little"


async def test_a_key_for_a_router_allows_its_models_through_the_router_only(tmp_path: Path) -> None:
    house = House(("auto", cascade(UNSURE)), keys=key_ring(tmp_path, ann='models = ["auto"]'))
    async with client(house.app, of("ann")) as http:
        through = await chat(http, model="auto", max_tokens=40)
        past = await chat(http, model="big")
    assert (text(through), past.status_code) == ("big me", 404)
    assert "The models are: auto." in str(error_of(past)["message"])


# -- differences from a model -----------------------------------------------------------------------------


async def test_a_router_is_listed_and_has_no_tokenizer() -> None:
    house = House(("auto", Rules((Rule(route="large", tools=True),))))
    async with client(house.app) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        card = (await http.get("/v1/models/auto-too")).json()
        tokens = await http.post("/tokenize", json={"model": "auto", "content": "a"})
        vectors = await http.post("/v1/embeddings", json={"model": "auto", "input": "a"})
        unknown = await chat(http, model="none")
    assert [each["id"] for each in listed] == ["little", "big", "vectors", "auto", "auto-too"]
    assert card.items() >= {"id": "auto-too", "kind": "routes", "state": "ready", "routes": ROUTES}.items()
    for refused in (tokens, vectors):
        assert (refused.status_code, error_of(refused)["code"]) == (400, "wrong_model_kind")
        assert "'auto' is a router" in str(error_of(refused)["message"])
    assert "The models are: little, big, vectors, auto, auto-too." in str(error_of(unknown)["message"])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [HELLO, FUNCTION_CALL]}, "messages"),
        ("/v1/responses", {"input": [HELLO, {"type": "function_call", "call_id": "1", **CALL}]}, "input"),
        ("/v1/messages", {"messages": [HELLO, TOOL_USE], "max_tokens": 5}, None),
    ],
)
async def test_an_invalid_prompt_is_refused_before_routing(
    path: str, body: dict[str, object], param: str | None
) -> None:
    """A rule that counts tokens needs the prompt before a model is chosen."""
    house = House(("auto", Rules((Rule(route="large", prompt_tokens_over=20),))))
    async with client(house.app) as http:
        refused = await http.post(path, json={"model": "auto", **body})
    error = messages_error_of(refused) if param is None else error_of(refused)
    assert (refused.status_code, error.get("param")) == (400, param)
    assert "the results of the calls must follow" in str(error["message"])


async def test_options_of_the_server_hold_for_both_models() -> None:
    house = House(("auto", cascade(SURE)))
    refused = await send(house, temperature=9)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "temperature")
    wrong = await send(house, priority="urgent")
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "priority")
