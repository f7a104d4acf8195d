"""Clients send what they send to anybody; it works, and the response says what had no effect."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.lazy import Lazy
from tests.server_process import ServerProcess

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else importing it asks a server of its makers
messages, langchain_openai = Lazy("langchain_core.messages"), Lazy("langchain_openai")
litellm = Lazy("litellm")
pytestmark = pytest.mark.native
HINTS: Any = {
    "store": True,
    "metadata": {"team": "a"},
    "verbosity": "low",
    "prediction": {"type": "content", "content": "Once"},
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "u",
    "service_tier": "scale",
    "modalities": ["text"],
    "audio": None,
}
NAMED = ["store", "verbosity", "prediction", "prompt_cache_key", "prompt_cache_retention", "service_tier"]
ASKED: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}


def test_the_openai_sdk_may_send_all_its_hints(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASKED, **HINTS)
    assert sorted(raw.headers["x-ignored-parameters"].split(",")) == sorted(NAMED)
    assert raw.parse().choices[0].message.content


def test_a_stream_may_ask_for_padding(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "include_obfuscation": True}
    *_, last = client.chat.completions.create(**ASKED, stream=True, stream_options=options)
    assert last.usage is not None
    assert last.usage.completion_tokens == 4


def test_an_answer_of_the_sdk_may_be_sent_back_as_it_came(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(**ASKED).choices[0].message
    messages: Any = [*ASKED["messages"], message.model_dump(), {"role": "user", "content": "Go on."}]
    assert client.chat.completions.create(**{**ASKED, "messages": messages}).choices[0].message.content


def test_an_image_is_refused_with_what_the_model_lacks(client: openai.OpenAI) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}]
    with pytest.raises(openai.BadRequestError, match="no vision") as caught:
        client.chat.completions.create(**{**ASKED, "messages": messages})
    assert (caught.value.param, caught.value.code) == ("messages[0].content[1].type", "unsupported_content")


def test_langchain_may_send_its_hints_and_notes(server: ServerProcess) -> None:
    chat = langchain_openai.ChatOpenAI(
        base_url=server.url + "/v1",
        api_key="none",  # type: ignore[arg-type]
        model="tiny",
        max_tokens=4,  # type: ignore[call-arg]
        store=True,
        verbosity="low",
        service_tier="standard",
        metadata={"a": "b"},
    )
    noted: Any = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}, "index": 0}]
    said = [
        messages.HumanMessage(noted),
        messages.AIMessage(noted, additional_kwargs={"refusal": None}),
        messages.HumanMessage("Go on."),
    ]
    assert chat.invoke(said).content


@pytest.fixture
def event_loop_of_thread() -> Iterator[None]:
    """LiteLLM asks for the thread's loop, and leaves it open where it has to make one."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.usefixtures("event_loop_of_thread")
@pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict:UserWarning")
def test_litellm_may_send_what_other_services_note(client: openai.OpenAI) -> None:
    """With a client that is closed: one of its own it keeps until the process ends."""
    noted: Any = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    messages = [
        {"role": "user", "content": noted},
        {"role": "assistant", "content": "Hello.", "provider_specific_fields": {"x": 1}, "annotations": []},
        {"role": "user", "content": "Go on."},
    ]
    answer: Any = litellm.completion(
        model="openai/tiny",
        client=client,
        api_base=str(client.base_url),
        api_key="none",
        messages=messages,
        max_tokens=4,
        prompt_cache_key="k",
        verbosity="low",
        allowed_openai_params=["prompt_cache_key", "verbosity"],
    )
    assert answer.choices[0].message.content


def test_the_older_servers_routes_answer(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        schema = {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        }
        ask = {
            "prompt": "Hello!",
            "max_tokens": 100,
            "format": "json",
            "json_schema": schema,
            "priority": "high",
        }
        whole = http.post("/generate", json=ask).json()
        assert set(whole["structured_data"]) == {"ok"}
        assert whole["metrics"]["ttft_ms"] > 0
        lines = http.post("/v1/generate", json={**ask, "stream": True}).text.split("\n\n")
        pieces = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        assert json.loads("".join(piece["text"] for piece in pieces)) == pieces[-1]["structured_data"]
        several = {"requests": [{"prompt": "A"}, {"prompt": ""}, {"prompt": "B"}], "max_tokens": 3}
        found = http.post("/v1/generate/batch", json=several).json()
        assert [result["status"] for result in found["results"]] == [200, 400, 200]
        assert http.get("/v1/model/info").json()["id"] == "tiny"
