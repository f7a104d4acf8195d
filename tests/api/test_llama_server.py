"""llama-server's routes. More cases are in `exchanges/llama_server.txt`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.captures import captured
from tests.api.fake_engine import READY, FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, api, client, embedding_model, locked_api, served, started
from tests.api.talking import error_of
from tests.docs.markdown import DOCS
from tests.fakes import FAKE_EMBEDDER, FAKE_RERANKER

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


@pytest.fixture
async def able() -> AsyncIterator[httpx.AsyncClient]:
    """A client of three models: one with fill-in-the-middle, one that embeds, one that ranks."""
    generates = served(FakeEngine(), tokenizer=FakeTokenizer(has_fim=True)).default
    embeds = embedding_model(FakeEngine(FAKE_EMBEDDER), "embeds")
    ranks = embedding_model(FakeEngine(FAKE_RERANKER), "ranks")
    async with client(create_api(ModelRegistry([generates, embeds, ranks]), OPTIONS).app) as http:
        yield http


async def complete(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/completion", json={"prompt": "hi", "n_predict": 8, "temperature": 0, **fields})


def documented() -> Iterator[tuple[str, str, str, int]]:
    """Method, path, body and status of each line of the manual's pages about other servers."""
    pages = (DOCS / f"{name}.md" for name in ("llama-server", "vllm"))
    for line in (line for page in pages for line in page.read_text("utf-8").splitlines()):
        if found := re.match(r"\| `(GET|POST) (/\S*) ?(.*?)` \| (\d+) \|", line):
            method, path, body, status = found.groups()
            yield method, path, body.replace("\\|", "|"), int(status)


@pytest.mark.parametrize(("method", "path", "body", "status"), [*documented()])
async def test_each_request_of_the_manual_has_its_status(
    able: httpx.AsyncClient, method: str, path: str, body: str, status: int
) -> None:
    answer = await able.request(method, path, content=body)
    assert answer.status_code == status, answer.text
    if status == 400:
        error_of(answer)


async def test_unlisted_samplers_are_off(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields: Json = {"temperature": 0.5, "min_p": 0.2, "dry_multiplier": 1, "repeat_penalty": 1.2}
    await complete(http, **fields, samplers="kt", seed=2**32 - 1)
    (request,) = engine.submitted
    assert (request.sampling.top_k, request.sampling.temperature) == (40, 0.5)
    assert (request.sampling.min_p, request.sampling.dry, request.sampling.repeat_penalty) == (0.0, None, 1.0)
    assert request.sampling.seed < 2**32 - 1
    error = error_of(await complete(http, **fields, samplers=["dry", "penalties"]))
    assert (error["param"], "penalties, dry" in str(error["message"])) == ("samplers", True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_openais_routes_take_llama_servers_fields(
    http: httpx.AsyncClient, engine: FakeEngine, path: str
) -> None:
    """The body is of a chat of llama-server's page with all settings."""
    body = {**captured("llama_server_page"), "prompt": "hi"}
    del body["prompt" if "chat" in path else "messages"]
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-ignored-parameters"] == "dynatemp_exponent,sse_ping_interval,samplers (infill)"
    (request,) = engine.submitted
    assert (request.sampling.top_k, request.sampling.min_p, request.sampling.top_p) == (40, 0.0, 1.0)
    wrong = await http.post(path, json={**body, "samplers": ["temperature", "top_k"]})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "samplers")
    wrong = await http.post(path, json={**body, "dynatemp_range": 0.5})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "dynatemp_range")


async def test_a_bias_of_a_text_is_one_of_its_tokens(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    await complete(http, logit_bias=[["ab", -1000], [70, 2], ["c", False], [71, False]])
    (request,) = engine.submitted
    a, b, c = (b"abc"[at] + 2 for at in range(3))
    assert request.sampling.logit_bias == {70: 2.0, a: -100.0, b: -100.0}
    assert set(request.sampling.bad_words) == {(c,), (71,)}


async def test_infill_prompts_have_llama_servers_order() -> None:
    """The order is that of `format_prompt_infill`. Files without room are left out, the first ones first."""
    engine = FakeEngine()
    fields = {"input_prefix": "ab", "prompt": "c", "input_suffix": "d", "n_predict": 4}
    files = [{"text": "x" * 5000}, {"filename": "f", "text": "y"}]
    async with client(create_api(served(engine, tokenizer=FakeTokenizer(has_fim=True)), OPTIONS).app) as able:
        answer = await able.post("/infill", json={**fields, "input_extra": files})
        assert answer.json()["tokens_predicted"] == 4
    (request,) = engine.submitted
    text = tuple(byte + 2 for byte in b"\n\n--- snippet ---\n\ny")
    assert request.tokens[-7 - len(text) :] == (*text, 400, 99, 100, 101, 401, 102, 402)


async def test_slots_show_ones_own_requests_only(tmp_path: Path) -> None:
    engine = FakeEngine(is_held=True)
    app = locked_api(engine, key_ring(tmp_path, ann="", bob=""))
    async with client(app) as http, started(app, engine, "/completion", {"prompt": "hi"}, of("ann")):
        own = (await http.get("/slots", headers=of("ann"))).json()
        others = (await http.get("/slots", headers=of("bob"))).json()
    assert [len(own), sum(slot["is_processing"] for slot in own)] == [64, 1]
    assert own[0]["request"].startswith("llama-")
    assert others[0] == {"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": True}


async def test_routes_are_unavailable_until_the_model_is_loaded() -> None:
    loading = msgspec.structs.replace(READY, state=EngineState.LOADING)
    async with client(api(FakeEngine(None, loading))) as http:
        for path in ("/slots", "/v1/health", "/props"):
            refused = await http.get(path)
            assert refused.status_code == 503
            assert (error_of(refused)["code"], error_of(refused)["type"]) == (503, "unavailable_error")
