"""Exact bytes of chat responses and chunks."""

from __future__ import annotations

import json

import msgspec
import pytest

from openai_cpu_server.api.asking.call import Call
from openai_cpu_server.api.asking.renderer import GatheredAnswer
from openai_cpu_server.api.asking.route import events
from openai_cpu_server.api.chat.render import ChatRenderer
from openai_cpu_server.contract.messages import FinishReason, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.models.served import ShownPieces
from tests.api.calls import MINUS_INFINITY, TIMINGS_JSON, call, end, figures, scored, text, tokens_of
from tests.api.fake_tokenizer import FakeTokenizer

PIECES = ShownPieces(FakeTokenizer())
RENDERER = ChatRenderer()
HEAD = '"id":"c","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp"'


def chunk(choice: str, tail: str = "") -> str:
    return f'data: {{{HEAD},"choices":[{choice}]{tail}}}\n\n'


def streamed(of: Call, *steps: TokenEvent) -> list[str]:
    stream = RENDERER.stream(of, PIECES)
    return [events(stream.event(event)).decode() for event in steps]


def whole(of: Call, *steps: TokenEvent) -> bytes:
    answers = {request.id: GatheredAnswer() for request in of.requests}
    for event in steps:
        answers[event.id].add(event)
    finishes = {key: answer.finish for key, answer in answers.items() if answer.finish}
    return RENDERER.whole(of, PIECES, answers, figures(of, finishes))


def test_a_stream_is_role_deltas_and_reason() -> None:
    opened, more, ended = streamed(call(), text(0, "he"), text(0, 'l"o'), end(0))
    assert opened == chunk(
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    ) + chunk('{"index":0,"delta":{"content":"he"},"logprobs":null,"finish_reason":null}')
    assert more == chunk('{"index":0,"delta":{"content":"l\\"o"},"logprobs":null,"finish_reason":null}')
    assert ended == chunk('{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}')


def test_one_event_can_be_a_whole_stream() -> None:
    event = msgspec.structs.replace(end(0, FinishReason.LENGTH), text="a", tokens=tokens_of("a"))
    (data,) = streamed(call(), event)
    assert [json.loads(part[6:])["choices"][0]["delta"] for part in data.strip().split("\n\n")] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {},
    ]
    assert '"finish_reason":"length"' in data


def test_choices_open_and_end_on_their_own() -> None:
    first, second, third = streamed(call(n=2), text(1, "b"), text(0, "a"), end(1))
    assert first.count('"role"') == second.count('"role"') == 1
    assert '"index":1' in first
    assert '"index":0' not in first
    assert '"index":0' in second
    assert third == chunk('{"index":1,"delta":{},"logprobs":null,"finish_reason":"stop"}')


def test_an_event_without_news_is_no_chunk() -> None:
    stream = RENDERER.stream(call(), PIECES)
    events(stream.event(text(0, "a")))
    assert events(stream.event(TokenEvent(id="c-0"))) == b""


def test_usage_is_null_until_its_own_chunk() -> None:
    asked = call(include_usage=True)
    stream = RENDERER.stream(asked, PIECES)
    assert events(stream.event(end(0))).decode().endswith('],"usage":null}\n\n')
    numbers = (
        ',"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,'
        '"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},'
        '"timings":' + TIMINGS_JSON
    )
    finish = end(0).finish
    assert finish is not None
    assert events(stream.end(figures(asked, {"c-0": finish}))).decode() == chunk("", numbers)


def test_the_tier_is_in_every_chunk() -> None:
    (data,) = streamed(call(service_tier="flex"), text(0, "a"))
    assert data.count('"model":"m","service_tier":"flex","system_fingerprint":"fp"') == 2


@pytest.mark.parametrize("line_end", ["\x85", "\u2028", "\u2029"])
def test_no_byte_of_a_chunk_ends_a_line_for_anyone(line_end: str) -> None:
    _, data = streamed(call(), text(0, "x"), text(0, f"a\r\n\x0b\x0c\x1c{line_end}é"))
    assert len(data.splitlines()) == 2
    assert json.loads(data[6:])["choices"][0]["delta"]["content"] == f"a\r\n\x0b\x0c\x1c{line_end}é"


def test_streamed_logprobs_have_openais_shape() -> None:
    (data,) = streamed(call(logprobs=1), text(0, "a", scored("a", -0.5, ("b", MINUS_INFINITY))))
    delta = data.strip().split("\n\n")[1]
    assert delta + "\n\n" == chunk(
        '{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],'
        '"top_logprobs":[{"token":"b","logprob":-9999.0,"bytes":[98]}]}],"refusal":null},"finish_reason":null}'
    )


def test_a_control_token_has_a_name_and_no_bytes() -> None:
    event = TokenEvent(id="c-0", tokens=(300,), logprobs=(TokenLogprob(300, -1.0),))
    (data,) = streamed(call(logprobs=0), event)
    assert '"content":[{"token":"<|user|>","logprob":-1.0,"bytes":null,"top_logprobs":[]}]' in data


def test_half_a_character_is_written_as_bytes() -> None:
    parts = [TokenLogprob(token, -1.0) for token in tokens_of("é")]
    event = TokenEvent(id="c-0", tokens=tokens_of("é"), text="é", logprobs=tuple(parts))
    (data,) = streamed(call(logprobs=0), event)
    entries = json.loads(data.strip().split("\n\n")[1][6:])["choices"][0]["logprobs"]["content"]
    assert [e["token"] for e in entries] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert bytes(e["bytes"][0] for e in entries).decode() == "é"


def test_a_whole_response() -> None:
    asked = call(service_tier="auto", metadata={"k": "v"})
    assert whole(asked, text(0, "he"), text(0, "y"), end(0)).decode() == (
        '{"id":"c","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":'
        '{"role":"assistant","content":"hey","refusal":null},"logprobs":null,"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":'
        '{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},"timings":'
        + TIMINGS_JSON
        + ',"service_tier":"auto",'
        '"system_fingerprint":"fp","metadata":{"k":"v"}}'
    )


def test_what_was_not_sent_is_not_echoed() -> None:
    body = json.loads(whole(call(), end(0)))
    assert "service_tier" not in body
    assert "metadata" not in body


def test_the_prompt_counts_once_for_all_choices() -> None:
    ends = [end(i, output_tokens=4, cached_tokens=i + 1) for i in range(3)]
    body = json.loads(whole(call(n=3), *ends))
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 12,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]


def test_whole_logprobs_join_those_of_all_events() -> None:
    body = json.loads(
        whole(call(logprobs=0), text(0, "a", scored("a", -1.0)), text(0, "b", scored("b", -2.0)), end(0))
    )
    assert [e["token"] for e in body["choices"][0]["logprobs"]["content"]] == ["a", "b"]


def test_an_end_by_the_server_is_no_result() -> None:
    with pytest.raises(GenerationFailed):
        whole(call(), end(0, FinishReason.CANCELLED))
