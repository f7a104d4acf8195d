"""Exact bytes of chat responses and chunks: text, calls of functions, thoughts."""

from __future__ import annotations

import itertools
import json
import re
from itertools import chain
from typing import Any

import msgspec
import pytest

from openai_cpu_server.api.asking.call import Call, CallThinking, ToolCallStyle
from openai_cpu_server.api.asking.generation import judged
from openai_cpu_server.api.asking.renderer import Usage, new_tool_call_id
from openai_cpu_server.api.asking.route import events
from openai_cpu_server.api.asking.running import TimedEvent
from openai_cpu_server.api.chat.render import ChatRenderer
from openai_cpu_server.contract.messages import FinishReason, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import GenerationFailed, InvalidRequest
from openai_cpu_server.prompt.reasoning import REASONING_FORMATS, ThinkingStage
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api import calls
from tests.api.calls import (
    MINUS_INFINITY,
    PIECES,
    TIMINGS_JSON,
    call,
    end,
    figures,
    scored,
    text,
    tokens_of,
    told,
)

HEAD = '"id":"c","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp"'
HERMES = ToolCallStyle(TOOL_FORMATS["hermes"], "tool_calls")
NAMED = ToolCallStyle(TOOL_FORMATS["hermes"], "stop")
LEGACY = ToolCallStyle(TOOL_FORMATS["demo"], "function_call", is_legacy=True)
ONE = '<tool_call>\n{"name":"f","arguments":{"a":"é\\"\u2028"}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name":"g","arguments":{}}\n</tool_call>'
THINK = REASONING_FORMATS["think"]
WITHIN = CallThinking(THINK, ThinkingStage.WITHIN)


def renderer() -> ChatRenderer:
    numbers = itertools.count(1)
    return ChatRenderer(new_id=lambda: f"call_{next(numbers)}")


def chunk(choice: str, tail: str = "") -> str:
    return f'data: {{{HEAD},"choices":[{choice}]{tail}}}\n\n'


def delta(content: str, reason: str = "null", logprobs: str = "null") -> str:
    return chunk(f'{{"index":0,"delta":{content},"logprobs":{logprobs},"finish_reason":{reason}}}')


ROLE = delta('{"role":"assistant","content":""}')
ROLE_OF_CALLS = delta('{"role":"assistant","content":null}')


def streamed(of: Call, *steps: TokenEvent) -> list[str]:
    return calls.streamed(renderer(), of, *steps)


def whole(of: Call, *steps: TokenEvent) -> bytes:
    return calls.whole(renderer(), of, *steps)


def choice(of: Call, *steps: TokenEvent) -> dict[str, Any]:
    (one,) = json.loads(whole(of, *steps))["choices"]
    return dict(one)


def choices_of(data: str) -> list[dict[str, Any]]:
    """The choice of each chunk."""
    return [json.loads(part[6:])["choices"][0] for part in data.strip().split("\n\n")]


def call_begins(index: int, name: str) -> str:
    return delta(
        f'{{"tool_calls":[{{"index":{index},"id":"call_{index + 1}","type":"function",'
        f'"function":{{"name":"{name}","arguments":""}}}}]}}'
    )


def arguments(index: int, text: str) -> str:
    written = json.dumps(text, ensure_ascii=False).replace("\u2028", "\\u2028")
    return delta(f'{{"tool_calls":[{{"index":{index},"function":{{"arguments":{written}}}}}]}}')


# -- text -------------------------------------------------------------------------------------------------


def test_a_stream_is_role_deltas_and_reason() -> None:
    opened, more, ended = streamed(call(), text(0, "he"), text(0, 'l"o'), end(0))
    assert opened == ROLE + delta('{"content":"he"}')
    assert more == delta('{"content":"l\\"o"}')
    assert ended == delta("{}", '"stop"')


def test_one_event_can_be_a_whole_stream() -> None:
    event = msgspec.structs.replace(end(0, FinishReason.LENGTH), text="a", tokens=tokens_of("a"))
    (data,) = streamed(call(), event)
    deltas = [one["delta"] for one in choices_of(data)]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {}]
    assert '"finish_reason":"length"' in data


def test_choices_open_and_end_on_their_own() -> None:
    first, second, third = streamed(call(n=2), text(1, "b"), text(0, "a"), end(1))
    assert first.count('"role"') == second.count('"role"') == 1
    assert '"index":1' in first
    assert '"index":0' not in first
    assert '"index":0' in second
    assert third == chunk('{"index":1,"delta":{},"logprobs":null,"finish_reason":"stop"}')


def test_an_event_without_news_is_no_chunk() -> None:
    stream = renderer().stream(call(), PIECES)
    events(stream.event(text(0, "a")))
    assert events(stream.event(TokenEvent(id="c-0"))) == b""


def test_usage_is_null_until_its_own_chunk() -> None:
    asked = call(include_usage=True)
    stream = renderer().stream(asked, PIECES)
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
    entries = choices_of(data)[1]["logprobs"]["content"]
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
    assert not {"service_tier", "metadata"} & json.loads(whole(call(), end(0))).keys()


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
    one = choice(call(logprobs=0), text(0, "a", scored("a", -1.0)), text(0, "b", scored("b", -2.0)), end(0))
    assert [e["token"] for e in one["logprobs"]["content"]] == ["a", "b"]


def test_an_end_by_the_server_is_no_result() -> None:
    with pytest.raises(GenerationFailed):
        whole(call(), end(0, FinishReason.CANCELLED))


# -- calls of functions -----------------------------------------------------------------------------------


def test_a_call_is_streamed_as_it_comes_and_its_marks_never() -> None:
    pieces = ["<tool", "_call>\n{", '"name":"f","argu', 'ments":', '{"a":', " 1}", "}\n</tool_", "call>"]
    chunks = streamed(call(tool_calls=HERMES), *(text(0, piece) for piece in pieces), end(0))
    assert chunks == [
        "",
        "",
        "",
        "",
        ROLE_OF_CALLS + call_begins(0, "f") + arguments(0, '{"a":'),
        arguments(0, " 1}"),
        "",
        "",
        delta("{}", '"tool_calls"'),
    ]


def test_content_then_two_calls_in_one_event() -> None:
    (data,) = streamed(call(tool_calls=HERMES), text(0, f"Well: {TWO}"))
    assert data == (
        ROLE
        + delta('{"content":"Well:"}')
        + call_begins(0, "f")
        + arguments(0, '{"a":"é\\"\u2028"}')
        + call_begins(1, "g")
        + arguments(1, "{}")
    )


def test_text_is_streamed_as_ever() -> None:
    chunks = streamed(call(tool_calls=HERMES), text(0, "he <"), text(0, "3"), end(0))
    assert chunks == [
        ROLE + delta('{"content":"he"}'),
        delta('{"content":" <3"}'),
        delta("{}", '"stop"'),
    ]


def test_what_was_held_back_comes_at_the_end() -> None:
    chunks = streamed(call(tool_calls=HERMES), text(0, "<tool"), end(0, FinishReason.LENGTH))
    assert chunks == [
        "",
        ROLE + delta('{"content":"<tool"}') + delta("{}", '"length"'),
    ]


def test_nothing_at_all_is_a_role_and_an_end() -> None:
    assert streamed(call(tool_calls=HERMES), end(0)) == [ROLE + delta("{}", '"stop"')]


def test_a_deprecated_call_has_no_id() -> None:
    chunks = streamed(
        call(tool_calls=LEGACY), text(0, '<|tool_call|>{"name":"f","arguments":{"a"'), text(0, ":1}}"), end(0)
    )
    assert chunks == [
        ROLE_OF_CALLS
        + delta('{"function_call":{"name":"f","arguments":""}}')
        + delta('{"function_call":{"arguments":"{\\"a\\""}}'),
        delta('{"function_call":{"arguments":":1}"}}'),
        delta("{}", '"function_call"'),
    ]


def test_choices_have_calls_of_their_own() -> None:
    data = "".join(streamed(call(n=2, tool_calls=HERMES), text(1, ONE), text(0, ONE)))
    begun = [
        (each["index"], part["index"], part["id"])
        for each in choices_of(data)
        for part in each["delta"].get("tool_calls", [])
        if "id" in part
    ]
    assert begun == [(1, 0, "call_1"), (0, 0, "call_2")]


def test_log_probabilities_of_all_tokens_are_shown() -> None:
    letters = '<tool_call>\n{"name":"f","arguments":{}}\n</tool_call>'
    steps = [text(0, letter, scored(letter, -1.0)) for letter in letters]
    of = call(tool_calls=HERMES, logprobs=0)
    chunks = choices_of("".join(streamed(of, *steps, end(0))))
    shown = [e["token"] for each in chunks for e in (each["logprobs"] or {"content": []})["content"]]
    assert "".join(shown) == letters
    logprobs = choice(of, *steps, end(0))["logprobs"]
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
    assert message["content"] == "Well:"


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


# -- thoughts ---------------------------------------------------------------------------------------------


def both(thoughts: str) -> str:
    return delta(f'{{"reasoning_content":"{thoughts}","reasoning":"{thoughts}"}}')


def test_thoughts_are_streamed_under_both_names() -> None:
    pieces = ["\nHm", ", well.\n", "</thi", "nk>", "\n\nYes", "."]
    chunks = streamed(call(thinking=WITHIN), *(text(0, piece) for piece in pieces), end(0))
    assert chunks == [
        ROLE_OF_CALLS + both("Hm"),
        both(", well."),
        "",
        "",
        delta('{"content":"Yes"}'),
        delta('{"content":"."}'),
        delta("{}", '"stop"'),
    ]


def test_an_answer_without_thoughts_is_streamed_as_ever() -> None:
    chunks = streamed(call(thinking=CallThinking(THINK, ThinkingStage.BEFORE)), text(0, "Yes"), end(0))
    assert chunks == [
        ROLE + delta('{"content":"Yes"}'),
        delta("{}", '"stop"'),
    ]


def test_thoughts_then_a_call() -> None:
    of = call(thinking=WITHIN, tool_calls=HERMES)
    said = (text(0, f"Hm.</think>\n\n{ONE}"), end(0))
    chunks = streamed(of, *said)
    assert chunks[0].startswith(ROLE_OF_CALLS + both("Hm."))
    assert '"name":"f"' in chunks[0]
    assert chunks[1] == delta("{}", '"tool_calls"')
    one = choice(of, *said)
    assert (one["message"]["content"], one["message"]["reasoning"]) == (None, "Hm.")
    assert one["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("said", "reason", "content", "thoughts"),
    [
        ("Hm.\n</think>\n\nYes.", FinishReason.STOP, "Yes.", "Hm."),
        ("Hm. And th", FinishReason.LENGTH, None, "Hm. And th"),
        ("</think>Yes.", FinishReason.STOP, "Yes.", None),
        ("", FinishReason.STOP, "", None),
    ],
)
def test_a_whole_message(said: str, reason: FinishReason, content: str | None, thoughts: str | None) -> None:
    found = choice(call(thinking=WITHIN), text(0, said), end(0, reason))
    assert found["finish_reason"] == reason.value
    message = found["message"]
    assert message["content"] == content
    assert message.get("reasoning_content") == message.get("reasoning") == thoughts


def letter(char: str) -> TokenEvent:
    return text(0, char, scored(char, -1.0))


@pytest.mark.parametrize(
    ("stage", "said", "scored_part"),
    [
        (ThinkingStage.WITHIN, "a</think>b", "b"),
        (ThinkingStage.WITHIN, "a\n</think>\n\nb c", "b c"),
        (ThinkingStage.WITHIN, "a", ""),
        (ThinkingStage.BEFORE, "<think>a</think>b", "b"),
        (ThinkingStage.BEFORE, "b", "b"),
        (ThinkingStage.BEFORE, "<th", "<th"),
        (ThinkingStage.BEFORE, "<thb", "<thb"),
    ],
)
def test_log_probabilities_are_those_of_content(stage: ThinkingStage, said: str, scored_part: str) -> None:
    thinking = call(thinking=CallThinking(THINK, stage), logprobs=0)
    heard = [*(letter(char) for char in said), end(0)]
    scores = choice(thinking, *heard)["logprobs"]["content"]
    assert "".join(entry["token"] for entry in scores) == scored_part
    assert "".join(streamed(thinking, *heard)).count('"logprob":') == len(scored_part)


@pytest.mark.parametrize(
    ("stage", "said"),
    [(ThinkingStage.WITHIN, "a</think> <response> b"), (ThinkingStage.BEFORE, "<response>b")],
)
def test_log_probabilities_of_an_answers_mark_are_nobodys(stage: ThinkingStage, said: str) -> None:
    granite = call(thinking=CallThinking(REASONING_FORMATS["granite"], stage), logprobs=0)
    heard = [*(letter(char) for char in said), end(0)]
    assert [entry["token"] for entry in choice(granite, *heard)["logprobs"]["content"]] == ["b"]


@pytest.mark.parametrize(("said", "expected"), [("Hm.</think>Yes.", 11), ("Hm", 2), ("</think>", 8)])
def test_tokens_of_thoughts_are_counted(said: str, expected: int) -> None:
    thinking = call(thinking=WITHIN)
    pieces = (said[:1], said[1:5], said[5:])
    last = told(thinking, [*(text(0, piece) for piece in pieces), end(0)])[-1][-1]
    assert last.finish is not None
    usage = Usage.of(figures(thinking, {last.id: last.finish}))
    assert usage.completion_tokens_details.reasoning_tokens == expected


def test_routers_judge_the_answer() -> None:
    thinking = call(thinking=WITHIN)
    heard = told(thinking, [*(letter(char) for char in "a</think>bc"), end(0)])
    (found,) = judged(thinking, [TimedEvent(event, 0.0) for event in chain.from_iterable(heard)])
    assert len(found.logprobs) == 2
    assert not found.has_form
