"""llama-server's routes: what its clients send, the shapes that they read, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from dirty_equals import IsInt, IsStr

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.asgi import exchange
from tests.api.captures import captured
from tests.api.fake_engine import READY, FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, api, client, embedding_model, locked_api, num_live, served
from tests.api.talking import complete, error_of, events
from tests.docs.markdown import DOCS
from tests.fakes import FAKE_EMBEDDER, FAKE_RERANKER
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


class HearingEngine(FakeEngine):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[GenerationRequest] = []

    def generate(self, requests: Any) -> Any:
        self.heard += requests
        return super().generate(requests)


@pytest.fixture
async def able() -> AsyncIterator[httpx.AsyncClient]:
    """A model that fills in, one that embeds, and one that ranks."""
    generates = served(FakeEngine(), tokenizer=FakeTokenizer(has_fim=True)).default
    embeds = embedding_model(FakeEngine(FAKE_EMBEDDER), "embeds")
    ranks = embedding_model(FakeEngine(FAKE_RERANKER), "ranks")
    async with client(create_api(ModelRegistry([generates, embeds, ranks]), OPTIONS).app) as http:
        yield http


@pytest.fixture
async def hearing() -> AsyncIterator[tuple[httpx.AsyncClient, HearingEngine]]:
    engine = HearingEngine()
    async with client(api(engine)) as http:
        yield http, engine


async def ask(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/completion", json={"prompt": "hi", "n_predict": 8, "temperature": 0, **fields})


def documented() -> Iterator[tuple[str, str, str, int]]:
    """The method, path, body and status of each line of the pages that people come to from other servers."""
    pages = (DOCS / f"{name}.md" for name in ("llama-server", "vllm", "openvino"))
    for line in (line for page in pages for line in page.read_text("utf-8").splitlines()):
        if found := re.match(r"\| `(GET|POST) (/\S*) ?(.*?)` \| (\d+) \|", line):
            method, path, body, status = found.groups()
            yield method, path, body.replace("\\|", "|"), int(status)


@pytest.mark.parametrize(("method", "path", "body", "status"), [*documented()])
async def test_each_line_of_the_manual(
    able: httpx.AsyncClient, method: str, path: str, body: str, status: int
) -> None:
    answer = await able.request(method, path, content=body)
    assert answer.status_code == status, answer.text
    if status == 400:
        error_of(answer)


async def test_an_answer_is_that_of_the_other_routes_in_llama_servers_shape(http: httpx.AsyncClient) -> None:
    plain = (await complete(http)).json()["choices"][0]["text"]
    whole = (await ask(http, return_tokens=True)).json()
    assert whole["content"] == plain
    assert (whole["stop"], whole["stop_type"], whole["prompt"]) == (True, "limit", "hi")
    assert (whole["tokens_predicted"], len(whole["tokens"])) == (8, 8)
    assert whole["tokens_cached"] == whole["tokens_evaluated"] + 8
    assert whole["generation_settings"]["top_k"] == 40, "llama-server's defaults"
    timings = whole["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == whole["tokens_evaluated"]
    assert timings["predicted_n"] == 8
    *chunks, last = events(await ask(http, stream=True, timings_per_token=True, n_probs=1))
    assert "".join(str(chunk["content"]) for chunk in chunks) == plain
    assert [chunk["tokens_predicted"] for chunk in chunks] == [*range(1, len(chunks) + 1)]
    assert all(not chunk["stop"] and chunk["timings"] for chunk in chunks)
    assert all(len(chunk["tokens"]) == len(chunk["completion_probabilities"]) for chunk in chunks)  # type: ignore[arg-type]
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert "[DONE]" not in (await ask(http, stream=True)).text


async def test_an_end_says_what_it_was() -> None:
    async with client(api(FakeEngine(says="one\ntwo"))) as http:
        ended = (await ask(http, n_predict=-1)).json()
    assert (ended["content"], ended["stop_type"], ended["has_new_line"]) == ("one\ntwo", "eos", True)


async def test_several_prompts_are_a_list_and_a_stream_tells_them_apart(http: httpx.AsyncClient) -> None:
    prompts = ["hi", [106, 109], [106, "k"]]
    answers = (await ask(http, prompt=prompts)).json()
    assert [one["index"] for one in answers] == [0, 1, 2]
    assert answers[1]["content"] == answers[2]["content"], "they are the same tokens"
    streamed = ["", "", ""]
    for chunk in events(await ask(http, prompt=prompts, stream=True)):
        streamed[int(str(chunk["index"]))] += str(chunk["content"])
    assert streamed == [one["content"] for one in answers]


async def test_samplers_that_are_not_named_are_off(hearing: tuple[httpx.AsyncClient, HearingEngine]) -> None:
    http, engine = hearing
    fields: Json = {"temperature": 0.5, "min_p": 0.2, "dry_multiplier": 1, "repeat_penalty": 1.2}
    await ask(http, **fields, samplers="kt", seed=2**32 - 1)
    (asked,) = engine.heard
    assert (asked.sampling.top_k, asked.sampling.temperature) == (40, 0.5)
    assert (asked.sampling.min_p, asked.sampling.dry, asked.sampling.repeat_penalty) == (0.0, None, 1.0)
    assert asked.sampling.seed < 2**32 - 1
    error = error_of(await ask(http, **fields, samplers=["dry", "penalties"]))
    assert (error["param"], "penalties, dry" in str(error["message"])) == ("samplers", True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_openais_routes_take_its_fields_too(
    hearing: tuple[httpx.AsyncClient, HearingEngine], path: str
) -> None:
    """Those of a chat of its page, with all of its settings."""
    http, engine = hearing
    body = {**captured("llama_server_page"), "prompt": "hi"}
    del body["prompt" if "chat" in path else "messages"]
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-ignored-parameters"] == "dynatemp_exponent,sse_ping_interval,samplers (infill)"
    (asked,) = engine.heard
    assert (asked.sampling.top_k, asked.sampling.min_p, asked.sampling.top_p) == (40, 0.0, 1.0)
    wrong = await http.post(path, json={**body, "samplers": ["temperature", "top_k"]})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "samplers")
    wrong = await http.post(path, json={**body, "dynatemp_range": 0.5})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "dynatemp_range")


async def test_biases_of_texts_are_those_of_their_tokens(
    hearing: tuple[httpx.AsyncClient, HearingEngine],
) -> None:
    http, engine = hearing
    await ask(http, logit_bias=[["ab", -1000], [70, 2], ["c", False], [71, False]])
    (asked,) = engine.heard
    a, b, c = (b"abc"[at] + 2 for at in range(3))
    assert asked.sampling.logit_bias == {70: 2.0, a: -100.0, b: -100.0}
    assert set(asked.sampling.bad_words) == {(c,), (71,)}


async def test_fields_are_chosen_by_their_paths(http: httpx.AsyncClient) -> None:
    paths = ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing/at/all"]
    told = (await ask(http, response_fields=paths)).json()
    assert told.keys() == {*paths[:3]}
    assert json.dumps(told["generation_settings/n_predict"]) == "8"


async def test_a_gap_is_filled_as_llama_server_asks(http: httpx.AsyncClient) -> None:
    """By the order of its `format_prompt_infill`; what has no room is left out, the first files first.

    A model without such tokens says so.
    """
    engine = HearingEngine()
    gap = {"input_prefix": "ab", "prompt": "c", "input_suffix": "d", "n_predict": 4}
    files = [{"text": "x" * 5000}, {"filename": "f", "text": "y"}]
    async with client(create_api(served(engine, tokenizer=FakeTokenizer(has_fim=True)), OPTIONS).app) as able:
        answer = await able.post("/infill", json={**gap, "input_extra": files})
        assert answer.json()["tokens_predicted"] == 4
        wrong: list[Json] = [{}, {"filename": "ok"}, {"filename": 1, "text": "a"}]
        for extra in wrong:
            assert (await able.post("/infill", json={**gap, "input_extra": [extra]})).status_code == 400
    (asked,) = engine.heard
    text = tuple(byte + 2 for byte in b"\n\n--- snippet ---\n\ny")
    assert asked.tokens[-7 - len(text) :] == (*text, 400, 99, 100, 101, 401, 102, 402)
    assert error_of(await http.post("/infill", json=gap))["param"] == "input_suffix"


async def test_vectors_are_lists_of_lists(able: httpx.AsyncClient) -> None:
    told = (await able.post("/embeddings", json={"content": ["one", "two"]})).json()
    plain = (await able.post("/v1/embeddings", json={"input": ["one", "two"]})).json()["data"]
    assert [one["embedding"] for one in told] == [[one["embedding"]] for one in plain]
    raw = (await able.post("/embedding", json={"content": "one", "embd_normalize": -1})).json()
    assert raw[0]["embedding"] != told[0]["embedding"]
    assert error_of(await able.post("/embedding", json={}))["param"] == "content"


async def test_inputs_may_be_mixed(able: httpx.AsyncClient) -> None:
    """As llama-server's own: texts beside token ids, in one input and in several."""

    async def vectors(content: object) -> list[list[float]]:
        answer = await able.post("/embedding", json={"content": content})
        assert answer.status_code == 200, answer.text
        return [one["embedding"][0] for one in answer.json()]

    text, h, i = await vectors(["hi", "h", "i"])
    h_token, i_token = (byte + 2 for byte in b"hi")
    assert await vectors(["h", i_token]) == [text]
    assert await vectors([0, "h", i_token, 1]) == [text], "what the model puts around it may be there"
    assert await vectors(["hi", [h_token], {"prompt_string": "i"}]) == [text, h, i]
    for wrong in (
        [-1],
        [99_999_999, "a"],
        [["a", None]],
        {"prompt_string": "a", "multimodal_data": ["aGk="]},
    ):
        error = error_of(await able.post("/embedding", json={"content": wrong}))
        assert str(error["param"]).startswith("content")


async def test_a_template_is_applied_and_read_again_as_it_was(http: httpx.AsyncClient) -> None:
    said = [{"role": "user", "content": "hi"}]
    prompt = (await http.post("/apply-template", json={"messages": said})).json()["prompt"]
    tokens = (await http.post("/tokenize", json={"content": prompt, "add_special": True})).json()["tokens"]
    assert tokens == (await http.post("/tokenize", json={"messages": said})).json()["tokens"]
    mixed = (await http.post("/tokenize", json={"content": ["h", 107], "add_special": True})).json()
    assert mixed["tokens"] == [0, 106, 107]


async def test_slots_tell_of_ones_own_requests(tmp_path: Path) -> None:
    engine = FakeEngine(is_held=True)
    app = locked_api(engine, key_ring(tmp_path, ann="", bob=""))
    async with client(app) as http, exchange(app, "/completion", {"prompt": "hi"}, of("ann")) as one:
        await eventually(lambda: num_live(engine) == 1)
        own = (await http.get("/slots", headers=of("ann"))).json()
        others = (await http.get("/slots", headers=of("bob"))).json()
        one.disconnect()
    assert [len(own), sum(slot["is_processing"] for slot in own)] == [64, 1]
    assert own[0]["request"].startswith("llama-")
    assert others[0] == {"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": True}


async def test_facts_wait_for_the_model() -> None:
    loading = msgspec.structs.replace(READY, state=EngineState.LOADING)
    async with client(api(FakeEngine(None, loading))) as http:
        for path in ("/slots", "/v1/health", "/props"):
            refused = await http.get(path)
            assert refused.status_code == 503
    assert (error_of(refused)["code"], error_of(refused)["type"]) == (503, "unavailable_error")


async def test_errors_have_the_status_as_their_code(able: httpx.AsyncClient, tmp_path: Path) -> None:
    """As llama-server tells it: clients that are written in Go and the like read a number there."""
    long = (await able.post("/completion", json={"prompt": "x" * 9000, "n_predict": 1})).json()["error"]
    assert long == {
        "code": 400,
        "type": "exceed_context_size_error",
        "param": "prompt",
        "n_ctx": 4096,
        "n_prompt_tokens": IsInt(gt=4096),
        "message": IsStr,
    }
    async with client(locked_api(FakeEngine(), key_ring(tmp_path, ann=""))) as http:
        without_key = await http.post("/infill", json={"input_prefix": "a", "input_suffix": ""})
    for answer, status, kind in (
        (await able.post("/completion", json={"prompt": "a", "model": "nobody"}), 404, "not_found_error"),
        (await able.post("/embeddings", json={"content": 3}), 400, "invalid_request_error"),
        (await able.post("/props", json={}), 405, "invalid_request_error"),
        (without_key, 401, "authentication_error"),
    ):
        error = error_of(answer)
        assert (answer.status_code, error["code"], error["type"]) == (status, status, kind)
