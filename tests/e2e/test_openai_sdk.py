"""The official SDK against the real server, as its users use it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import openai
import pytest

from tests.e2e.serving import async_sdk, num_live, sdk
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.native

ON = {"ignore_eos": True}
HELLO: Any = [{"role": "user", "content": "Tell me about the river and the bridge."}]


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12)
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert 0 <= answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens
    timings = answer.model_extra["timings"]
    assert timings["tokens_generated"] == 12
    parts = timings["queue_ms"] + timings["prefill_ms"] + timings["generation_ms"]
    assert parts == pytest.approx(timings["latency_ms"], abs=0.1)


def test_greedy_output_is_the_same_streamed_or_not(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=40, temperature=0)
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=40, temperature=0, stream=True
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({c.id for c in chunks}) == 1


def test_a_stream_reports_usage_once_when_asked(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=5,
            n=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    usages = [c.usage for c in chunks if c.usage]
    assert len(usages) == 1
    assert usages[0].completion_tokens == 15
    assert chunks[-1].choices == []
    assert {c.choices[0].index for c in chunks[:-1]} == {0, 1, 2}


def test_log_probabilities_in_both_shapes(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    chat = client.chat.completions.create(**asked, messages=HELLO, logprobs=True, top_logprobs=3)
    logprobs = chat.choices[0].logprobs
    assert logprobs.content is not None
    assert len(logprobs.content) == 8
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs)
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1.0 + 1e-6
        assert bytes(token.bytes or []).decode(errors="replace") == token.token
    choice = client.completions.create(**asked, prompt="the river", logprobs=2, echo=True).choices[0]
    assert choice.text.startswith("the river")
    values = choice.logprobs.token_logprobs
    assert values[0] is None
    assert all(value is not None and value <= 0 for value in values[1:])
    assert len(choice.logprobs.tokens or []) == len(values) == len(choice.logprobs.text_offset or [])


@pytest.mark.parametrize("echo", [True, False])
def test_the_token_that_ends_an_answer_has_a_log_probability_too(client: openai.OpenAI, echo: bool) -> None:
    """Evaluations cut the generated token off an echo: they would cut one of the prompt's."""
    tokenizer = client.get("/../tokenizer_info", cast_to=dict[str, Any])
    (end,) = client.post("/../tokenize", body={"content": tokenizer["eos_token"]}, cast_to=dict[str, Any])[
        "tokens"
    ]
    asked: Any = {"model": "tiny", "prompt": "the river", "max_tokens": 3, "logprobs": 1, "echo": echo}
    asked |= {"logit_bias": {str(end): 100}, "temperature": 0}
    whole = client.completions.create(**asked)
    told = whole.choices[0].logprobs
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == 1
    expected = 1 + (whole.usage.prompt_tokens if echo else 0)
    lists = (told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset)
    assert [len(values or ()) for values in lists] == 4 * [expected]
    assert whole.choices[0].text == ("the river" if echo else "")
    parts = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert [token for part in parts if part.logprobs for token in part.logprobs.tokens or ()] == told.tokens
    assert "".join(part.text for part in parts) == whole.choices[0].text


def test_errors_are_the_exceptions_that_users_catch(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-4o")
    assert missing.value.code == "model_not_found"
    wrong: Any
    for wrong, param in (
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"extra_headers": {"X-Priority": "urgent"}}, "X-Priority"),
        ({"max_tokens": 10**6}, "messages"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **wrong})
        assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")
        assert refused.value.request_id


@pytest.mark.anyio
async def test_sixteen_streams_advance_together(server: ServerProcess) -> None:
    begun, ended = set[int](), list[set[int]]()

    async def one(number: int, client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=150, seed=number, stream=True, extra_body=ON
        )
        async for _ in stream:
            begun.add(number)
        ended.append(set(begun))

    async with async_sdk(server) as client:
        await asyncio.gather(*(one(number, client) for number in range(16)))
    assert ended[0] == set(range(16)), "all had begun when the first one ended"


def test_a_client_that_leaves_frees_its_slot(server: ServerProcess, client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "extra_body": ON}
    with client.completions.create(**asked, stream=True) as stream:
        next(iter(stream))
    with sdk(server, timeout=0.3) as hasty, pytest.raises(openai.APITimeoutError):
        hasty.completions.create(**asked)
    wait_until(lambda: num_live(server) == 0 and server.status()["memory"]["kv_tokens_used"] == 0)


def test_an_answer_of_the_sdk_may_be_sent_back_as_it_came_and_its_hints_are_named(
    client: openai.OpenAI,
) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 4}
    said = client.chat.completions.create(**asked, messages=HELLO).choices[0].message.model_dump()
    again: Any = [*HELLO, said, {"role": "user", "content": "Go on."}]
    hints: Any = {"store": True, "prompt_cache_key": "k", "metadata": {"a": "b"}, "service_tier": "scale"}
    raw = client.chat.completions.with_raw_response.create(**asked, messages=again, **hints)
    assert set(raw.headers["x-ignored-parameters"].split(",")) == hints.keys() - {"metadata"}
    assert raw.parse().choices[0].message.content
