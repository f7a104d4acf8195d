"""`POST /v1/rerank` by cosine, by a cross-encoder and by yes or no; `exchanges/rerank.txt` has more cases."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine, bias_scores
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import OPTIONS, client, embedding_model, num_live
from tests.api.talking import error_of
from tests.api.watching import page
from tests.fakes import FAKE_EMBEDDER, FAKE_INFO, FAKE_RERANKER, vector_of
from tests.reading import model_read_here
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

PATH = "/v1/rerank"
QUERY, DOCUMENTS = "abc", ["xyz", "abd", "abc"]
TWICE = [*DOCUMENTS, "", "xyz", ""]
"""Documents with duplicates, which keep their order."""
RERANK_TEMPLATE = "Q {query} D {document} 'Yes' or 'No'?"


def letters(text: str) -> list[int]:
    return [byte + 2 for byte in text.encode()]


def judge(engine: FakeEngine, *, own: str | None = RERANK_TEMPLATE, chat: str | None = None) -> ServedModel:
    """Build a generating model that answers yes or no."""
    template = ChatTemplate(chat, bos_text="<s>", eos_text="</s>") if chat else None
    return model_read_here(
        names=("judge",),
        engine=engine,
        tokenizer=FakeTokenizer(rerank_template=own),
        template=template,
        tool_format=TOOL_FORMATS["generic"],
    )


class Served:
    def __init__(self) -> None:
        self.judge_engine, self.cross = FakeEngine(), FakeEngine(FAKE_RERANKER)
        self.models = ModelRegistry(
            [
                judge(FakeEngine(), own=None),
                embedding_model(FakeEngine(FAKE_EMBEDDER), "embedder"),
                embedding_model(self.cross, "cross"),
            ]
        )
        self.judges = ModelRegistry([judge(self.judge_engine)])


@pytest.fixture
async def served() -> Served:
    return Served()


@pytest.fixture
def app(served: Served) -> Starlette:
    return create_api(served.models, OPTIONS).app


@pytest.fixture
async def http(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with client(app) as http_client:
        yield http_client


async def rerank(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post(PATH, json={"query": QUERY, "documents": DOCUMENTS, **fields})


def ranked(answer: httpx.Response) -> list[tuple[int, float]]:
    assert answer.status_code == 200, answer.text
    return [(item["index"], item["relevance_score"]) for item in answer.json()["results"]]


def sigmoid(number: float) -> float:
    return 1 / (1 + math.exp(-number))


def pair_score(document: str) -> float:
    return vector_of([0, *letters(QUERY), 1, *letters(document), 1], 1)[0]


def log_odds(document: str) -> float:
    """Log-odds of Yes against No, by the first letters, as the fake engine scores them."""
    prompt = (0, *letters(f"Q {QUERY} D {document} 'Yes' or 'No'?"))
    yes, no = letters("YN")
    sampling = Sampling(seed=0, logit_bias={yes: 1.0, no: 1.0})
    scores = bias_scores(GenerationRequest(id="", tokens=prompt, max_tokens=1, sampling=sampling))
    return scores[yes] - scores[no]


def in_order(scores: list[float]) -> list[tuple[int, float]]:
    pairs = sorted(enumerate(scores), key=lambda pair: -pair[1])
    return [(index, pytest.approx(score, abs=1e-6)) for index, score in pairs]


async def test_an_embedding_model_ranks_by_cosine(http: httpx.AsyncClient) -> None:
    vectors = [np.array(vector_of([0, *letters(text), 1], 16)) for text in (QUERY, *TWICE)]
    query, *others = [vector / np.linalg.norm(vector) for vector in vectors]
    answer = await rerank(http, model="embedder", documents=TWICE)
    assert ranked(answer) == in_order([float(query @ other) for other in others])
    assert ranked(answer)[0] == (2, pytest.approx(1.0, abs=1e-6))
    body = answer.json()
    assert list(body) == ["id", "object", "model", "results", "usage", "timings"]
    assert body["id"].startswith("rerank-")
    assert (body["object"], body["model"]) == ("list", "embedder")
    assert body["usage"] == {"prompt_tokens": 29, "total_tokens": 29}
    assert body["results"][0]["document"] == {"text": "abc"}


async def test_a_cross_encoder_scores_pairs(http: httpx.AsyncClient) -> None:
    scores = [pair_score(text) for text in TWICE]
    answer = await rerank(http, model="cross", documents=TWICE)
    counted = await page(http)
    assert counted.sum("ocs_embedded_inputs_total") == len(TWICE)
    assert counted.sum("ocs_embedded_tokens_total") == answer.json()["usage"]["prompt_tokens"]
    assert ranked(answer) == in_order([sigmoid(score) for score in scores])
    assert answer.json()["usage"]["prompt_tokens"] == 4 * 9 + 2 * 6
    raw = await rerank(http, model="cross", documents=TWICE, use_activation=False)
    assert ranked(raw) == in_order(scores)


async def test_scores_of_qwen3_are_probabilities_and_its_template_is_used() -> None:
    tokenizer = FakeTokenizer(adds_bos=False, adds_end=True, rerank_template=RERANK_TEMPLATE)
    info = msgspec.structs.replace(FAKE_RERANKER, architecture="qwen3", embedding_size=2)
    models = ModelRegistry([embedding_model(FakeEngine(info), "q", tokenizer=tokenizer)])
    async with client(create_api(models, OPTIONS).app) as http:
        answer = await rerank(http)
    prompts = [letters(f"Q {QUERY} D {text} 'Yes' or 'No'?") for text in DOCUMENTS]
    assert ranked(answer) == in_order([vector_of(prompt, 2)[0] for prompt in prompts])


CHAT = "{% for m in messages %}{{ m.role[0] | upper }} {{ m.content }} {% endfor %}'Yes' or 'No'?"


@pytest.mark.parametrize("templates", [{}, {"own": None, "chat": CHAT}])
async def test_a_generating_model_ranks_by_yes_or_no(templates: dict[str, Any]) -> None:
    """The prompt comes from the template for reranking, or from the one for chats."""
    models = ModelRegistry([judge(FakeEngine(), **templates)])
    async with client(create_api(models, OPTIONS).app) as http:
        answer = await rerank(http, model="judge")
        raw = await rerank(http, use_activation=False)
    scores = [log_odds(text) for text in DOCUMENTS]
    assert ranked(answer) == in_order([sigmoid(score) for score in scores])
    assert ranked(raw) == in_order(scores)
    prompts = [f"Q abc D {document} 'Yes' or 'No'?" for document in DOCUMENTS]
    assert answer.json()["usage"]["prompt_tokens"] == sum(1 + len(prompt) for prompt in prompts)


async def test_all_documents_of_a_call_are_submitted_together(served: Served) -> None:
    served.judge_engine.goes_on.clear()
    app = create_api(served.judges, OPTIONS).app
    async with exchange(app, PATH, {"query": "q", "documents": ["a", "b"]}, {"X-Priority": "batch"}) as call:
        await eventually(lambda: num_live(served.judge_engine) == 2)
        first, second = served.judge_engine.requests()
        assert first.id.removesuffix("0") == second.id.removesuffix("1")
        assert first.id.startswith("rerank-")
        assert first.priority.label == "batch"
        call.disconnect()
    assert num_live(served.judge_engine) == 0


async def test_a_long_document_is_truncated_on_demand(http: httpx.AsyncClient) -> None:
    document = "a" * 80
    for model, tokens in (("cross", 64), ("embedder", 64 + 5)):
        answer = await rerank(http, model=model, documents=[document], truncate=True)
        assert answer.json()["usage"]["prompt_tokens"] == tokens
        assert answer.json()["results"][0]["document"]["text"] == document


async def test_text_embeddings_inference_gets_a_list(http: httpx.AsyncClient) -> None:
    body = {"model": "cross", "query": QUERY, "texts": DOCUMENTS}
    items = (await http.post("/rerank", json={**body, "return_text": True})).json()
    best_first = ranked(await rerank(http, model="cross"))
    assert [(item["index"], item["score"]) for item in items] == best_first
    assert [item["text"] for item in items] == [DOCUMENTS[index] for index, _ in best_first]
    raw = (await http.post("/rerank", json={**body, "raw_scores": True, "top_n": 1})).json()
    assert raw == [{"index": raw[0]["index"], "score": pytest.approx(max(map(pair_score, DOCUMENTS)))}]


CLASSES = msgspec.structs.replace(FAKE_RERANKER, embedding_size=3, labels=("bad", "so", "good"))


async def test_texts_are_classified() -> None:
    """A model with one score has one class without a label of its own."""
    models = [embedding_model(FakeEngine(CLASSES), "mood"), embedding_model(FakeEngine(FAKE_RERANKER), "one")]
    async with client(create_api(ModelRegistry(models), OPTIONS).app) as http:
        body = {"model": "mood", "input": ["abc", "a"]}
        classified = (await http.post("/v1/classify", json=body)).json()
        raw = (await http.post("/classify", json={**body, "use_activation": False})).json()
        single = (await http.post("/classify", json={"model": "one", "input": "abc"})).json()
        refused = error_of(await rerank(http, model="mood"))
        cut = await http.post("/classify", json={"model": "one", "input": "abc", "truncate_prompt_tokens": 3})
    numbers = np.array(vector_of([0, *letters("abc"), 1], 3))
    shares = np.exp(numbers) / np.exp(numbers).sum()
    assert (classified["object"], classified["usage"]["prompt_tokens"]) == ("list", 8)
    assert classified["data"][0] == {
        "index": 0, "label": CLASSES.labels[int(numbers.argmax())],
        "probs": pytest.approx(shares.tolist()), "num_classes": 3,
    }  # fmt: skip
    assert raw["data"][0]["probs"] == numbers.tolist()
    score = sigmoid(vector_of([0, *letters("abc"), 1], 1)[0])
    assert single["data"] == [
        {"index": 0, "label": "LABEL_0", "probs": [pytest.approx(score)], "num_classes": 1}
    ]
    assert (refused["param"], refused["code"]) == ("model", "wrong_model_kind")
    assert cut.json()["usage"]["prompt_tokens"] == 3


async def test_a_document_in_a_template_is_truncated_too(served: Served) -> None:
    info = msgspec.structs.replace(FAKE_INFO, kv_tokens=60)
    models = ModelRegistry([judge(FakeEngine(info))])
    async with client(create_api(models, OPTIONS).app) as http:
        refused = error_of(await rerank(http, documents=["a", "é" * 50]))
        truncated = await rerank(http, documents=["a", "é" * 50], truncate=True)
        query = error_of(await rerank(http, query="q" * 70, truncate=True))
    assert (refused["param"], refused["code"]) == ("documents[1]", "context_length_exceeded")
    assert truncated.status_code == 200
    assert truncated.json()["usage"]["prompt_tokens"] <= 28 + 59
    assert (query["param"], query["code"]) == ("documents[0]", "context_length_exceeded")


async def test_more_documents_than_sequences_are_refused(served: Served) -> None:
    options = msgspec.structs.replace(OPTIONS, max_sequences=2)
    async with client(create_api(served.judges, options).app) as http:
        error = error_of(await rerank(http))
    assert (error["param"], error["code"]) == ("documents", "invalid_value")


async def test_rows_of_a_batch_rerank(served: Served) -> None:
    run_row = create_api(served.models, OPTIONS).run_row
    body = {"model": "cross", "query": QUERY, "documents": DOCUMENTS}
    answer = await run_row(PATH, json.dumps(body).encode(), "")
    assert answer.status == 200
    results: list[dict[str, Any]] = json.loads(answer.body)["results"]
    assert [r["index"] for r in results] == [i for i, _ in in_order([pair_score(text) for text in DOCUMENTS])]


async def scores(http: httpx.AsyncClient, text_1: object, text_2: object, **fields: object) -> list[float]:
    answer = await http.post("/v1/score", json={"text_1": text_1, "text_2": text_2, **fields})
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [pair["index"] for pair in data] == [*range(len(data))]
    return [pair["score"] for pair in data]


@pytest.mark.parametrize("model", ["embedder", "cross", "judge"])
async def test_pairs_are_scored_as_rankings_are(served: Served, model: str) -> None:
    models = served.judges if model == "judge" else served.models
    async with client(create_api(models, OPTIONS).app) as http:
        by_index = dict(ranked(await rerank(http, model=model)))
        pair_scores = await scores(http, QUERY, DOCUMENTS, model=model)
        assert pair_scores == pytest.approx([by_index[index] for index in range(3)])
        assert await scores(http, [QUERY] * 3, DOCUMENTS, model=model) == pytest.approx(pair_scores)
        (other,) = await scores(http, "other", DOCUMENTS[1], model=model)
        mixed = await scores(http, [QUERY, "other"], DOCUMENTS[:2], model=model)
        assert mixed == pytest.approx([pair_scores[0], other])
        wrong = await http.post("/score", json={"text_1": ["a", "b"], "text_2": DOCUMENTS, "model": model})
        assert error_of(wrong)["param"] == "text_1"
