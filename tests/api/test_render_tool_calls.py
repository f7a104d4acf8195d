"""Exact bytes of function calls, whole and in chunks."""

from __future__ import annotations

import itertools
import json
import re
from itertools import chain

import pytest

from openai_cpu_server.api.asking.call import Call, ToolCallStyle
from openai_cpu_server.api.asking.renderer import GatheredAnswer, new_tool_call_id
from openai_cpu_server.api.asking.route import events
from openai_cpu_server.api.chat.render import ChatRenderer
from openai_cpu_server.contract.messages import FinishReason, TokenEvent
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.served import ShownPieces
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.calls import call, end, figures, scored, text, told
from tests.api.fake_tokenizer import FakeTokenizer

PIECES = ShownPieces(FakeTokenizer())
HEAD = '"id":"c","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp"'
HERMES = ToolCallStyle(TOOL_FORMATS["hermes"], "tool_calls")
NAMED = ToolCallStyle(TOOL_FORMATS["hermes"], "stop")
LLAMA = ToolCallStyle(TOOL_FORMATS["llama3"], "tool_calls")
LEGACY = ToolCallStyle(TOOL_FORMATS["demo"], "function_call", is_legacy=True)
ONE = '<tool_call>\n{"name":"f","arguments":{"a":"é\\"\u2028"}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name":"g","arguments":{}}\n</tool_call>'


def renderer() -> ChatRenderer:
    numbers = itertools.count(1)
    return ChatRenderer(new_id=lambda: f"call_{next(numbers)}")


def chunk(choice: str) -> str:
    return f'data: {{{HEAD},"choices":[{choice}]}}\n\n'


def delta(content: str, reason: str = "null", logprobs: str = "null") -> str:
    return chunk(f'{{"index":0,"delta":{content},"logprobs":{logprobs},"finish_reason":{reason}}}')


def streamed(of: Call, *steps: TokenEvent) -> list[str]:
    stream = renderer().stream(of, PIECES)
    return ["".join(events(stream.event(one)).decode() for one in step) for step in told(of, steps)]


def whole(of: Call, *steps: TokenEvent) -> dict[str, object]:
    answers = {request.id: GatheredAnswer() for request in of.requests}
    for event in chain.from_iterable(told(of, steps)):
        answers[event.id].add(event)
    finishes = {key: answer.finish for key, answer in answers.items() if answer.finish}
    body = json.loads(renderer().whole(of, PIECES, answers, figures(of, finishes)))
    assert isinstance(body, dict)
    return body


def choice(of: Call, *steps: TokenEvent) -> dict[str, object]:
    body = whole(of, *steps)
    assert isinstance(body["choices"], list)
    (one,) = body["choices"]
    assert isinstance(one, dict)
    return one


def test_a_call_is_streamed_as_it_comes_and_its_marks_never() -> None:
    pieces = ["<tool", "_call>\n{", '"name":"f","argu', 'ments":', '{"a":', " 1}", "}\n</tool_", "call>"]
    chunks = streamed(call(tool_calls=HERMES), *(text(0, piece) for piece in pieces), end(0))
    assert chunks == [
        "",
        "",
        "",
        "",
        delta('{"role":"assistant","content":null}')
        + delta(
            '{"tool_calls":[{"index":0,"id":"call_1","type":"function",'
            '"function":{"name":"f","arguments":""}}]}'
        )
        + delta('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\":"}}]}'),
        delta('{"tool_calls":[{"index":0,"function":{"arguments":" 1}"}}]}'),
        "",
        "",
        delta("{}", '"tool_calls"'),
    ]


def test_content_then_two_calls_in_one_event() -> None:
    (data,) = streamed(call(tool_calls=HERMES), text(0, f"Well: {TWO}"))
    assert data == (
        delta('{"role":"assistant","content":""}')
        + delta('{"content":"Well:"}')
        + delta(
            '{"tool_calls":[{"index":0,"id":"call_1","type":"function",'
            '"function":{"name":"f","arguments":""}}]}'
        )
        + delta('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\":\\"é\\\\\\"\\u2028\\"}"}}]}')
        + delta(
            '{"tool_calls":[{"index":1,"id":"call_2","type":"function",'
            '"function":{"name":"g","arguments":""}}]}'
        )
        + delta('{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]}')
    )


def test_text_is_streamed_as_ever() -> None:
    chunks = streamed(call(tool_calls=HERMES), text(0, "he <"), text(0, "3"), end(0))
    assert chunks == [
        delta('{"role":"assistant","content":""}') + delta('{"content":"he"}'),
        delta('{"content":" <3"}'),
        delta("{}", '"stop"'),
    ]


def test_what_was_held_back_comes_at_the_end() -> None:
    chunks = streamed(call(tool_calls=HERMES), text(0, "<tool"), end(0, FinishReason.LENGTH))
    assert chunks == [
        "",
        delta('{"role":"assistant","content":""}') + delta('{"content":"<tool"}') + delta("{}", '"length"'),
    ]


def test_nothing_at_all_is_a_role_and_an_end() -> None:
    assert streamed(call(tool_calls=LLAMA), end(0)) == [
        delta('{"role":"assistant","content":""}') + delta("{}", '"stop"')
    ]


def test_a_deprecated_call_has_no_id() -> None:
    chunks = streamed(
        call(tool_calls=LEGACY), text(0, '<|tool_call|>{"name":"f","arguments":{"a"'), text(0, ":1}}"), end(0)
    )
    assert chunks == [
        delta('{"role":"assistant","content":null}')
        + delta('{"function_call":{"name":"f","arguments":""}}')
        + delta('{"function_call":{"arguments":"{\\"a\\""}}'),
        delta('{"function_call":{"arguments":":1}"}}'),
        delta("{}", '"function_call"'),
    ]


def test_choices_have_calls_of_their_own() -> None:
    stream = renderer().stream(call(n=2, tool_calls=HERMES), PIECES)
    data = "".join(events(stream.event(text(index, ONE))).decode() for index in (1, 0))
    chunks = [json.loads(line[6:])["choices"][0] for line in data.strip().split("\n\n")]
    begun = [
        (each["index"], part["index"], part["id"])
        for each in chunks
        for part in each["delta"].get("tool_calls", [])
        if "id" in part
    ]
    assert begun == [(1, 0, "call_1"), (0, 0, "call_2")]


def test_log_probabilities_of_all_tokens_are_shown() -> None:
    letters = '<tool_call>\n{"name":"f","arguments":{}}\n</tool_call>'
    steps = [text(0, letter, scored(letter, -1.0)) for letter in letters]
    stream = renderer().stream(call(tool_calls=HERMES, logprobs=0), PIECES)
    data = "".join(events(stream.event(event)).decode() for event in [*steps, end(0)])
    chunks = [json.loads(line[6:])["choices"][0] for line in data.strip().split("\n\n")]
    shown = [e["token"] for each in chunks for e in (each["logprobs"] or {"content": []})["content"]]
    assert "".join(shown) == letters
    logprobs = choice(call(tool_calls=HERMES, logprobs=0), *steps, end(0))["logprobs"]
    assert isinstance(logprobs, dict)
    assert "".join(e["token"] for e in logprobs["content"]) == letters


def test_a_whole_response_with_calls() -> None:
    assert choice(call(tool_calls=HERMES), text(0, TWO), end(0)) == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a":"é\\"\u2028"}'},
                },
                {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        "logprobs": None,
        "finish_reason": "tool_calls",
    }


def test_content_beside_calls_is_kept() -> None:
    message = choice(call(tool_calls=HERMES), text(0, f"Well:\n{ONE}"), end(0))["message"]
    assert isinstance(message, dict)
    assert message["content"] == "Well:"


def test_a_whole_text_has_no_calls() -> None:
    assert choice(call(tool_calls=HERMES), text(0, "hi "), end(0)) == {
        "index": 0,
        "message": {"role": "assistant", "content": "hi ", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_a_whole_deprecated_call() -> None:
    one = choice(call(tool_calls=LEGACY), text(0, '<|tool_call|>{"name":"f","arguments":{}}'), end(0))
    assert one["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": {"name": "f", "arguments": "{}"},
    }
    assert one["finish_reason"] == "function_call"


def test_the_end_of_a_function_called_by_name_is_a_stop() -> None:
    assert choice(call(tool_calls=NAMED), text(0, ONE), end(0))["finish_reason"] == "stop"
    assert '"finish_reason":"stop"' in streamed(call(tool_calls=NAMED), text(0, ONE), end(0))[1]


def test_a_call_that_is_cut_by_its_length_says_so() -> None:
    cut = [text(0, ONE[:-20]), end(0, FinishReason.LENGTH)]
    one = choice(call(tool_calls=HERMES), *cut)
    assert one["finish_reason"] == "length"
    assert isinstance(one["message"], dict)
    (made,) = one["message"]["tool_calls"]
    assert '{"a":"é\\"\u2028"}'.startswith(made["function"]["arguments"])
    assert streamed(call(tool_calls=HERMES), *cut)[1] == delta("{}", '"length"')


def test_a_call_that_a_stop_string_has_cut_is_an_error() -> None:
    cut = [text(0, '<tool_call>\n{"name":"f","arguments":{"a"'), end(0)]
    for way in (choice, streamed):
        with pytest.raises(InvalidRequest, match="stop string") as error:
            way(call(tool_calls=HERMES), *cut)
        assert error.value.param == "stop"


def test_ids_are_openais() -> None:
    ids = {new_tool_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{24}", each) for each in ids)
