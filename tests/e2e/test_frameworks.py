"""LangChain and LlamaIndex with only the base URL changed."""

from __future__ import annotations

import httpx
import pytest

from tests.lazy import Lazy
from tests.server_process import ServerProcess

langchain_openai = Lazy("langchain_openai")
types, llms = Lazy("llama_index.core.base.llms.types"), Lazy("llama_index.llms.openai_like")

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def langchain(server: ServerProcess) -> langchain_openai.ChatOpenAI:
    return langchain_openai.ChatOpenAI(
        base_url=server.url + "/v1", api_key="none", model="tiny", temperature=0, max_tokens=12
    )


@pytest.fixture(scope="module")
def llama_index(server: ServerProcess) -> llms.OpenAILike:
    return llms.OpenAILike(
        api_base=server.url + "/v1",
        api_key="none",
        model="tiny",
        is_chat_model=True,
        temperature=0,
        max_tokens=12,
    )


def test_langchain_invokes_and_streams_the_same(langchain: langchain_openai.ChatOpenAI) -> None:
    whole = langchain.invoke("Say something.")
    streamed = "".join(str(chunk.content) for chunk in langchain.stream("Say something."))
    assert streamed == whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 12
    assert whole.response_metadata["finish_reason"] == "length"


@pytest.mark.anyio
async def test_langchain_batches_asynchronously(server: ServerProcess) -> None:
    async with httpx.AsyncClient() as http:
        langchain = langchain_openai.ChatOpenAI(
            base_url=server.url + "/v1", api_key="none", model="tiny", max_tokens=12, http_async_client=http
        )
        answers = await langchain.abatch([f"Number {i}" for i in range(5)])
    assert all(answer.content for answer in answers)


def test_llama_index_chats_and_streams_the_same(llama_index: llms.OpenAILike) -> None:
    messages = [types.ChatMessage(role="user", content="Say something.")]
    whole = llama_index.chat(messages).message.content
    *_, last = llama_index.stream_chat(messages)
    assert last.message.content == whole


def test_llama_index_completes(llama_index: llms.OpenAILike) -> None:
    assert llama_index.complete("Once upon a time").text
