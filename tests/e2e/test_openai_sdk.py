"""The official SDK against the real server."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.e2e.serving import num_live, sdk
from tests.gates import suspended
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.native

ON = {"ignore_eos": True}
HELLO: Any = [{"role": "user", "content": "Tell me about the river and the bridge."}]


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12, extra_body=ON)
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


def test_the_token_that_ends_an_answer_has_a_log_probability_too(client: openai.OpenAI) -> None:
    """Evaluations cut the generated token off an echo. Without its entry they would cut one of the prompt."""
    tokenizer = client.get("/../tokenizer_info", cast_to=dict[str, Any])
    content = {"content": tokenizer["eos_token"]}
    (end,) = client.post("/../tokenize", body=content, cast_to=dict[str, Any])["tokens"]
    params: Any = {"model": "tiny", "prompt": "the river", "max_tokens": 3, "logprobs": 1, "echo": True}
    params |= {"logit_bias": {str(end): 100}, "temperature": 0}
    whole = client.completions.create(**params)
    logprobs = whole.choices[0].logprobs
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == 1
    expected = 1 + whole.usage.prompt_tokens
    lists = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
    assert [len(values or ()) for values in lists] == 4 * [expected]
    assert whole.choices[0].text == "the river"
    parts = [chunk.choices[0] for chunk in client.completions.create(**params, stream=True)]
    streamed = [token for part in parts if part.logprobs for token in part.logprobs.tokens or ()]
    assert streamed == logprobs.tokens
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


def test_a_client_that_leaves_frees_its_slot(server: ServerProcess, client: openai.OpenAI) -> None:
    params: Any = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "extra_body": ON}
    with client.completions.create(**params, stream=True) as stream:
        next(iter(stream))
    # Suspended, so that no answer comes before the client gives up.
    with (
        sdk(server, timeout=0.3) as hasty,
        suspended(server.engine.pid),
        pytest.raises(openai.APITimeoutError),
    ):
        hasty.completions.create(**params)
    wait_until(lambda: num_live(server) == 0 and server.status()["memory"]["kv_tokens_used"] == 0)
