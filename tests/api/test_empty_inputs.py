"""Inputs that are empty, on all routes that embed or score: an engine never sees one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import OPTIONS, client, embedding_model
from tests.fakes import FAKE_EMBEDDER

pytestmark = pytest.mark.anyio


class SilentTokenizer(FakeTokenizer):
    """A vocabulary that writes nothing around a text, and has no tokens for this one."""

    def encode_all(self, texts: list[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        return [[] for _ in texts]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    model = embedding_model(FakeEngine(FAKE_EMBEDDER), "fake", tokenizer=SilentTokenizer())
    async with client(create_api(ModelRegistry([model]), OPTIONS).app) as http:
        yield http


@pytest.mark.parametrize("given", ["", []])
async def test_ollama_has_no_vectors_for_nothing(http: httpx.AsyncClient, given: object) -> None:
    answer = await http.post("/api/embed", json={"model": "fake", "input": given})
    assert (answer.status_code, answer.json()["embeddings"]) == (200, [])
    old = await http.post("/api/embeddings", json={"model": "fake", "prompt": ""})
    assert (old.status_code, old.json()) == (200, {"embedding": []})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": []}),
        ("/v1/embeddings", {"input": "\u200b"}),
        ("/v1/embeddings", {"input": ["a", ""]}),
        ("/v1/embeddings", {"input": [[]]}),
        ("/embedding", {"content": "\u200b"}),
        ("/embedding", {"content": ""}),
        ("/embedding", {"content": []}),
        ("/embedding", {"input": [""]}),
        ("/api/embed", {"input": [""]}),
        ("/api/embed", {"input": ["\u200b"]}),
        ("/api/embeddings", {"prompt": "\u200b"}),
        ("/v1/rerank", {"query": "\u200b", "documents": [""]}),
        ("/v1/rerank", {"query": "a", "documents": []}),
        ("/score", {"text_1": "\u200b", "text_2": ["\u200b"]}),
        ("/score", {"text_1": "a", "text_2": []}),
        ("/classify", {"input": []}),
    ],
)
async def test_other_routes_refuse_what_is_empty(
    http: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    answer = await http.post(path, json={"model": "fake", **body})
    assert answer.status_code == 400, answer.text
