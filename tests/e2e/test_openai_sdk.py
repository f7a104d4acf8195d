"""The official SDK against the real server, as its users use it."""

from __future__ import annotations

import asyncio
import math
import time

import openai
import pytest

from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.native

ON = {"ignore_eos": True}
HELLO = [{"role": "user", "content": "Tell me about the river and the bridge."}]


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12)
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.usage.prompt_tokens_details is not None
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


def test_two_choices_differ(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=20, n=2, seed=7, temperature=1.5
    )
    first, second = (choice.message.content for choice in answer.choices)
    assert first != second


def test_a_seed_repeats_an_answer(client: openai.OpenAI) -> None:
    def content(seed: int) -> str | None:
        answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20, seed=seed)
        return answer.choices[0].message.content

    assert content(7) == content(7)
    assert content(7) != content(8)


def test_logprobs_in_the_chat_shape(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 8
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs)
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1.0 + 1e-6
        assert bytes(token.bytes or []).decode(errors="replace") == token.token


def test_logprobs_in_the_legacy_shape_with_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="the river", max_tokens=3, logprobs=2, echo=True, temperature=0
    )
    assert answer.choices[0].text.startswith("the river")
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset or [])


def test_a_stop_string_is_never_shown(client: openai.OpenAI) -> None:
    whole = (
        client.completions.create(model="tiny", prompt="once", max_tokens=40, temperature=0).choices[0].text
    )
    stop = whole[12:17]
    stream = client.completions.create(
        model="tiny", prompt="once", max_tokens=40, temperature=0, stop=stop, stream=True
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_prompts_and_token_ids(client: openai.OpenAI) -> None:
    texts = client.completions.create(model="tiny", prompt=["one", "two"], max_tokens=4, n=2, temperature=0)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert texts.choices[0].text == texts.choices[1].text
    assert texts.choices[0].text != texts.choices[2].text
    ids = client.completions.create(model="tiny", prompt=[[300, 301], [302]], max_tokens=2)
    assert len(ids.choices) == 2


def test_best_of_returns_the_likeliest(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="one", max_tokens=6, best_of=4, n=1, seed=3, extra_body={"logprobs": 0}
    )
    assert len(answer.choices) == 1
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24


def test_an_assistant_message_at_the_end_is_continued(client: openai.OpenAI) -> None:
    prefill = [*HELLO, {"role": "assistant", "content": "The river is"}]
    answer = client.chat.completions.create(model="tiny", messages=prefill, max_tokens=4, temperature=0)
    plain = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4, temperature=0)
    assert answer.usage is not None
    assert plain.usage is not None
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens
    assert answer.choices[0].message.content != plain.choices[0].message.content


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-4o")
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"n": 1000}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"stop": [str(i) for i in range(65)]}, "stop"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"extra_body": {"nonsense": 1}}, "nonsense"),
        ({"extra_headers": {"X-Priority": "urgent"}}, "X-Priority"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"max_tokens": 10**6}, "messages"),
    ],
)
def test_wrong_requests_name_the_parameter(
    client: openai.OpenAI, more: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **more})
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"
    assert error.value.request_id


def test_a_prompt_that_does_not_fit_is_refused_at_once(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt="word " * 20_000)
    assert error.value.code == "context_length_exceeded"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4o", messages=HELLO)


def test_batch_priority_by_service_tier(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=2, service_tier="flex", user="u", metadata={"job": "1"}
    )
    assert answer.service_tier == "flex"
    assert answer.model_extra["metadata"] == {"job": "1"}


def test_the_key_is_required_where_one_is_set() -> None:
    with (
        ServerProcess("--model", str(tiny_model_path()), "--api-key", "secret") as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as wrong,
        openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0) as right,
    ):
        with pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        assert len(right.models.list().data) == 1
        assert server.status()["status"]


@pytest.mark.anyio
async def test_sixteen_streams_advance_together(server: ServerProcess) -> None:
    arrivals: dict[int, list[float]] = {}

    async def one(number: int, sdk: openai.AsyncOpenAI) -> None:
        stream = await sdk.chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=150,
            seed=number,
            stream=True,
            extra_body=ON,
        )
        arrivals[number] = [time.monotonic() async for _ in stream]

    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as sdk:
        await asyncio.gather(*(one(number, sdk) for number in range(16)))
    last_to_begin = max(times[0] for times in arrivals.values())
    first_to_end = min(times[-1] for times in arrivals.values())
    assert last_to_begin < first_to_end


@pytest.mark.anyio
async def test_two_hundred_clients_all_finish(server: ServerProcess) -> None:
    async def one(number: int, sdk: openai.AsyncOpenAI) -> int:
        answer = await sdk.completions.create(
            model="tiny", prompt=f"Number {number}", max_tokens=8, extra_body=ON
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=100) as sdk:
        assert await asyncio.gather(*(one(number, sdk) for number in range(200))) == [8] * 200


@pytest.mark.anyio
async def test_a_client_that_leaves_frees_its_slot(server: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as sdk:
        stream = await sdk.completions.create(
            model="tiny", prompt="x", max_tokens=4000, stream=True, extra_body=ON
        )
        async for _ in stream:
            break
        await stream.close()
        waiting = asyncio.create_task(
            sdk.completions.create(model="tiny", prompt="x", max_tokens=4000, extra_body=ON)
        )
        await asyncio.sleep(0.3)
        waiting.cancel()
        for _ in range(100):
            status = server.status()
            queues = [count for queue in status["queue"].values() for count in queue.values()]
            if status["memory"]["kv_tokens_used"] == 0 and not any(queues):
                return
            await asyncio.sleep(0.05)
    pytest.fail(f"still held: {status}")
