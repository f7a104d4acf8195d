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
    RoutingPolicy,
    Rule,
    Rules,
    Shares,
    Stickiness,
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

BROKEN = msgspec.structs.replace(READY, state=EngineState.FAILED, reason="it is broken")
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


class RoutedServer:
    """Server with a small and a large model, an embedder, and routers."""

    def __init__(self, *ways: tuple[str, RoutingPolicy], keys: KeyRing | None = None) -> None:
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


async def send(server: RoutedServer, **fields: object) -> httpx.Response:
    async with client(server.app) as http:
        return await chat(http, **{"model": "auto", "max_tokens": 40, **fields})


def text(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def why(response: httpx.Response) -> tuple[str, str]:
    return response.headers["x-routed-model"], response.headers["x-routed-why"]


# -- ways of choosing -------------------------------------------------------------------------------------


async def test_rules_decide_and_a_header_names_the_rule() -> None:
    rules = Rules((Rule(route="large", tools=True), Rule(route="large", prompt_tokens_over=20)))
    server = RoutedServer(("auto", rules))
    plain, with_tools = await send(server), await send(server, tools=[TOOL])
    long = await send(server, messages=[{"role": "user", "content": "a" * 21}])
    assert (text(plain), plain.json()["model"]) == ("little me", "auto")
    assert why(plain) == ("little", "small: no rule holds")
    assert why(with_tools) == ("big", "large: rule 1")
    assert (text(long), why(long)) == ("big me", ("big", "large: rule 2"))
    assert server.counted("big", "rule")
    assert server.counted("little", "otherwise")


async def test_a_classifier_names_the_route_and_the_request_is_in_its_prompt() -> None:
    classifier = partial(Classifier, model="big", prompt="Which? {request}")
    server = RoutedServer(("auto", classifier(timeout_s=DEADLINE_S)), ("hasty", classifier(timeout_s=0.05)))
    server.big.goes_on.clear()
    assert why(await send(server, model="hasty")) == ("little", "small: big: no answer within 0.05 s")
    await eventually(lambda: num_live(server.big) == 0)
    server.big.goes_on.set()
    server.big.text = "large"
    answer = await send(server)
    assert why(answer) == ("big", "large: big says so")
    server.big.text = "nonsense"
    assert why(await send(server)) == ("little", "small: big has named no route")
    server.big.base_status = BROKEN
    failed = await send(server)
    assert text(failed) == "little me"
    assert why(failed) == ("little", "small: big: The engine is failed: it is broken.")
    assert server.counted("little", "unavailable")


async def test_the_nearest_example_decides() -> None:
    texts = (("small", "hi"), ("large", "prove it"))
    way = Examples(model="vectors", texts=texts, least_similarity=0.999, timeout_s=5)
    server = RoutedServer(("auto", way))
    same = await send(server, messages=[{"role": "user", "content": "prove it"}])
    assert why(same) == ("big", "large: example of 'large' (similarity=1.00)")
    unlike = await send(server, messages=[{"role": "user", "content": "zzzzzzzzzzzz"}])
    assert why(unlike)[0] == "little"
    assert why(unlike)[1].startswith("small: similarity=")


async def test_shares_stick_to_a_user() -> None:
    way = Shares(weights=(("small", 1), ("large", 1)), sticky=Stickiness.USER)
    server = RoutedServer(("auto", way))
    async with client(server.app) as http:
        first, second = [
            [why(await chat(http, model="auto", user=str(user)))[0] for user in range(20)] for _ in range(2)
        ]
    assert first == second
    assert set(first) == {"little", "big"}


async def test_a_router_may_lead_to_another() -> None:
    rules = Rules((Rule(route="large", max_tokens_over=10),))
    server = RoutedServer(("auto", rules), ("outer", Rules((Rule(route="large", tools=True),))))
    answer = await send(server, model="outer")
    assert why(answer) == ("big", "small: no rule holds; large: rule 1")
    assert server.counted("big", "rule", router="outer")


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
    server = RoutedServer(("auto", cascade(threshold)))
    response = await send(
        server, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )
    assert why(response) == route
    assert server.counted(route[0], label)
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
    server = RoutedServer(("auto", cascade(SURE)))
    server.little.text = '{"a": 1}'
    server.big.text = "{}"
    truncated = await send(server, max_tokens=3, **FORM)
    whole = await send(server, **FORM)
    free = await send(server, max_tokens=3)
    assert why(truncated) == ("big", "small: the answer was cut")
    assert (why(whole)[0], text(whole)) == ("little", '{"a": 1}')
    assert (why(free)[0], text(free)) == ("little", '{"a')


async def test_streams_may_go_to_the_large_model_at_once() -> None:
    server = RoutedServer(("auto", cascade(SURE, WhenStreaming.LARGE)))
    assert why(await send(server, stream=True)) == ("big", "large: a stream")
    assert why(await send(server))[0] == "little"


async def test_the_large_model_answers_if_the_small_one_cannot() -> None:
    server = RoutedServer(("auto", cascade(SURE)))
    server.little.base_status = BROKEN
    broken = await send(server)
    assert (text(broken), why(broken)[0]) == ("big me", "big")
    assert server.counted("big", "failed")
    server.little.base_status = READY
    info = server.little.info
    assert info is not None
    server.little.info = msgspec.structs.replace(info, context_trained=20)
    long = await send(server, messages=[{"role": "user", "content": "a" * 30}])
    assert (text(long), why(long)[0]) == ("big me", "big")
    assert server.counted("big", "too_long")


async def test_the_large_model_answers_without_the_adapter_of_the_small_route() -> None:
    server = RoutedServer(("french", cascade(SURE)))
    await server.little.load_adapter(Adapter(name="french", path="a.gguf", digest="d"))
    with_adapter = await send(server, model="french")
    assert (text(with_adapter), why(with_adapter)[0]) == ("little me", "little:french")
    assert 'ocs_adapter_tokens_total{adapter="little:french",kind="output"} 10.0' in server.metrics
    server.little.unload_adapter("french")
    without_adapter = await send(server, model="french")
    assert (text(without_adapter), why(without_adapter)[0]) == ("big me", "big")
    assert server.counted("big", "failed", "french")


async def test_completions_are_routed_and_scores_of_prompts_come_from_the_large_model() -> None:
    server = RoutedServer(("auto", cascade(SURE)))
    async with client(server.app) as http:
        sure = await complete(http, model="auto", n=2, max_tokens=20)
        scored = await complete(http, model="auto", max_tokens=0, echo=True, logprobs=0)
    assert [choice["text"] for choice in sure.json()["choices"]] == ["little me", "little me"]
    assert why(scored) == ("big", "large: there is no output to judge")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_trial(stream: bool) -> None:
    server = RoutedServer(("auto", cascade(SURE)))
    server.little.goes_on.clear()
    body = {"model": "auto", "messages": [HELLO], "stream": stream}
    async with exchange(server.app, "/v1/chat/completions", body) as request:
        await eventually(lambda: num_live(server.little) == 1)
        request.disconnect()
    await eventually(lambda: num_live(server.little) == 0)
    assert num_live(server.big) == 0
    assert "ocs_routed_requests_total{" not in server.metrics


async def test_a_trial_ends_in_time_and_can_be_ended_by_an_administrator() -> None:
    server = RoutedServer(("auto", cascade(SURE)))
    server.little.goes_on.clear()
    late = await send(server, timeout=0.05)
    assert (late.status_code, num_live(server.big)) == (408, 0)
    body = {"model": "auto", "messages": [HELLO]}
    async with exchange(server.app, "/v1/chat/completions", body) as request, client(server.app) as http:
        await eventually(lambda: num_live(server.little) == 1)
        (card,) = (await http.get("/v1/requests")).json()["data"]
        assert (await http.delete(f"/v1/requests/{card['id']}")).status_code == 200
        assert b"request_cancelled" in (await request.chunk() or b"")
    assert num_live(server.big) == 0


# -- batches, sockets and keys ----------------------------------------------------------------------------


async def test_rows_of_batches_are_routed() -> None:
    server = RoutedServer(("auto", cascade(UNSURE)))
    body = {"model": "auto", "messages": [HELLO], "max_tokens": 40}
    answer = await server.api.run_row("/v1/chat/completions", json.dumps(body).encode(), "")
    assert (answer.status, b"big me" in answer.body) == (200, True)
    assert server.counted("big", "unsure")


async def test_a_socket_is_routed_and_may_cancel_a_trial() -> None:
    server = RoutedServer(("auto", cascade(SURE)))
    server.little.goes_on.clear()
    async with opened(server.app) as socket:
        socket.ask("one", model="auto")
        await eventually(lambda: num_live(server.little) == 1)
        socket.send({"cancel": "one"})
        (ended,) = (await socket.until_end("one"))["one"]
        assert ended["error"]["code"] == "request_cancelled"
        server.little.goes_on.set()
        socket.ask("two", model="auto", stream=False, max_tokens=40)
        answer, done = (await socket.until_end("two"))["two"]
        socket.ask("three", model="auto", max_tokens=40)
        chunks = (await socket.until_end("three"))["three"]
        server.little.goes_on.clear()
        socket.ask("four", model="auto")
        await eventually(lambda: num_live(server.little) == 1)
    await eventually(lambda: num_live(server.little) == 0)
    assert answer["choices"][0]["message"]["content"] == content(chunks) == "little me"
    assert done["headers"]["x-routed-model"] == "little"


async def test_a_key_for_a_router_allows_its_models_through_the_router_only(tmp_path: Path) -> None:
    server = RoutedServer(("auto", cascade(UNSURE)), keys=key_ring(tmp_path, ann='models = ["auto"]'))
    async with client(server.app, of("ann")) as http:
        through = await chat(http, model="auto", max_tokens=40)
        past = await chat(http, model="big")
    assert (text(through), past.status_code) == ("big me", 404)
    assert "The models are: auto." in str(error_of(past)["message"])


# -- differences from a model -----------------------------------------------------------------------------


async def test_a_router_is_listed_and_has_no_tokenizer() -> None:
    server = RoutedServer(("auto", Rules((Rule(route="large", tools=True),))))
    async with client(server.app) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        card = (await http.get("/v1/models/auto-too")).json()
        tokens = await http.post("/tokenize", json={"model": "auto", "content": "a"})
        vectors = await http.post("/v1/embeddings", json={"model": "auto", "input": "a"})
        unknown = await chat(http, model="none")
    assert [model["id"] for model in listed] == ["little", "big", "vectors", "auto", "auto-too"]
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
async def test_an_invalid_prompt_is_refused(path: str, body: dict[str, object], param: str | None) -> None:
    """A rule that counts tokens needs the prompt before a model is chosen."""
    server = RoutedServer(("auto", Rules((Rule(route="large", prompt_tokens_over=20),))))
    async with client(server.app) as http:
        refused = await http.post(path, json={"model": "auto", **body})
    error = messages_error_of(refused) if param is None else error_of(refused)
    assert (refused.status_code, error.get("param")) == (400, param)
    assert "the results of the calls must follow" in str(error["message"])


async def test_options_of_the_server_hold_for_both_models() -> None:
    server = RoutedServer(("auto", cascade(SURE)))
    refused = await send(server, temperature=9)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "temperature")
    wrong = await send(server, priority="urgent")
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "priority")
