"""Clients that embed and rerank on a real server with MiniLM and SmolLM2. Only their base URL is changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openai
import pytest

from tests.lazy import Lazy
from tests.server_process import ServerProcess

vectorstores, langchain_openai = Lazy("langchain_core.vectorstores"), Lazy("langchain_openai")
schema = Lazy("llama_index.core.schema")
embeddings = Lazy("llama_index.embeddings.openai_like")
rerankers = Lazy("llama_index.postprocessor.jinaai_rerank")

pytestmark = [pytest.mark.native, pytest.mark.thorough]

WEATHER = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
PUBLISHED = [0.6660, 0.1046, 0.1411]
FACTS = [
    "The bakery opens at seven o'clock in the morning.",
    "The museum of clocks is closed on Mondays.",
    "Bob keeps his red bicycle in the cellar.",
]
QUESTION = "When does the bakery open?"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--model", "minilm", "--model", "smollm2") as server:
        yield server


def cosines(vectors: list[list[float]]) -> list[float]:
    """Return the cosines of vectors 1 and 2, 1 and 3, 2 and 3."""
    rows = np.array(vectors)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    return [float(rows[i] @ rows[j]) for i, j in ((0, 1), (0, 2), (1, 2))]


def test_cosines_are_the_published_ones(client: openai.OpenAI) -> None:
    """The SDK requests base64 by default."""
    packed = client.embeddings.create(model="minilm", input=WEATHER)
    plain = client.embeddings.create(model="minilm", input=WEATHER, encoding_format="float")
    for answer in (packed, plain):
        assert cosines([item.embedding for item in answer.data]) == pytest.approx(PUBLISHED, abs=0.01)
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-9)


def test_langchain_answers_from_a_retrieved_text(server: ServerProcess) -> None:
    endpoint = {"base_url": server.url + "/v1", "api_key": "none"}
    embedder = langchain_openai.OpenAIEmbeddings(**endpoint, model="minilm", check_embedding_ctx_length=False)
    store = vectorstores.InMemoryVectorStore(embedder)
    store.add_texts(FACTS)
    (found,) = store.similarity_search(QUESTION, k=1)
    assert found.page_content == FACTS[0]
    chat = langchain_openai.ChatOpenAI(**endpoint, model="smollm2", temperature=0, max_tokens=40)
    reply = chat.invoke(f"Answer from this text: {found.page_content}\n\n{QUESTION}")
    assert "seven" in str(reply.content)


def test_llama_index_embeds_and_reranks(server: ServerProcess) -> None:
    url = server.url + "/v1"
    embedding = embeddings.OpenAILikeEmbedding(model_name="minilm", api_base=url, api_key="none")
    assert cosines(embedding.get_text_embedding_batch(WEATHER)) == pytest.approx(PUBLISHED, abs=0.01)
    rerank = rerankers.JinaRerank(top_n=2, model="minilm", base_url=url, api_key="none")
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=fact)) for fact in FACTS]
    best, second = rerank.postprocess_nodes(nodes, schema.QueryBundle(QUESTION))
    assert best.node.get_content() == FACTS[0]
    assert best.score > second.score
