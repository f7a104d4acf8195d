"""Exact bytes of Anthropic's messages, whole and as the events of a stream."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from openai_cpu_server.api.asking.call import Call, PartsReader, ToolCallStyle
from openai_cpu_server.api.asking.route import events
from openai_cpu_server.api.messages.render import MessagesRenderer, MessageStream, new_tool_use_id
from openai_cpu_server.contract.messages import Finish, FinishReason, ModelLoading, QueuePlace, TokenEvent
from openai_cpu_server.errors import EngineUnavailable, GenerationFailed, InvalidRequest, ServerError
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.prompt.tool_formats import (
    TOOL_FORMATS,
    CallArguments,
    CallBegin,
    Content,
    Part,
    ThinkingText,
)
from tests.api import calls
from tests.api.calls import PIECES, call, end, figures, streamed, text

HERMES = ToolCallStyle(TOOL_FORMATS["hermes"], "tool_calls")
CALL = '<tool_call>\n{"name":"f","arguments":{"a": "é"}}\n</tool_call>'
USAGE = (
    '"usage":{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,'
    '"output_tokens":%d,"output_tokens_details":{"thinking_tokens":0}}'
)


class ScriptedReader:
    """Reads each character as the part that a script has for it: an output with all kinds of parts."""

    is_cut = False
    has_calls = True

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)

    def feed(self, text: str) -> list[Part]:
        return [self._parts.pop(0) for _ in text]

    def finish(self) -> list[Part]:
        return []


class ScriptedCall(Call, frozen=True, kw_only=True):
    script: tuple[Part, ...]

    def reader(self) -> PartsReader:
        return PartsReader(ScriptedReader(self.script))


def scripted(*parts: Part) -> ScriptedCall:
    return ScriptedCall(**msgspec.structs.asdict(call()), script=parts)


def renderer() -> MessagesRenderer:
    numbers = itertools.count(1)
    return MessagesRenderer(new_id=lambda: f"toolu_{next(numbers)}")


def event(name: str, fields: str = "") -> str:
    return f'event: {name}\ndata: {{"type":"{name}"{"," if fields else ""}{fields}}}\n\n'


def start(index: int, block: str) -> str:
    return event("content_block_start", f'"index":{index},"content_block":{{{block}}}')


def delta(index: int, fields: str) -> str:
    return event("content_block_delta", f'"index":{index},"delta":{{{fields}}}')


def stop(index: int) -> str:
    return event("content_block_stop", f'"index":{index}')


def stream(of: Call) -> MessageStream:
    return renderer().stream(of, PIECES)


def ending(of: Call, *steps: TokenEvent) -> dict[str, object]:
    """The last words of a stream; those of the whole answer must be the same."""
    one = stream(of)
    for step in steps:
        one.event(step)
    finish = steps[-1].finish
    assert finish is not None
    numbers = figures(of, {of.requests[0].id: finish})
    last = json.loads(one.end(numbers)[0].json)
    message = whole(of, *steps)
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    assert last == {"type": "message_delta", "delta": ended, "usage": message["usage"]}
    return ended


def whole(of: Call, *steps: TokenEvent) -> dict[str, Any]:
    return dict(json.loads(calls.whole(renderer(), of, *steps)))


def stopped(stop_string: str) -> TokenEvent:
    finish = Finish(reason=FinishReason.STOP, output_tokens=2, stop_string=stop_string)
    return TokenEvent(id="c-0", finish=finish)


def test_a_stream_begins_with_the_message_before_there_is_a_token() -> None:
    usage_so_far = USAGE.partition(',"output_tokens_details')[0] % (3, 0, 0)
    fields = (
        '"message":{"type":"message","id":"c","role":"assistant","model":"m","content":[],"stop_reason":null,'
        f'"stop_sequence":null,{usage_so_far}}}}}'
    )
    assert events(stream(call()).begin()).decode() == event("message_start", fields)


def test_text_is_one_block() -> None:
    assert streamed(renderer(), call(), text(0, "Hé"), text(0, "\u2028"), end(0)) == [
        start(0, '"type":"text","text":""') + delta(0, '"type":"text_delta","text":"Hé"'),
        delta(0, '"type":"text_delta","text":"\\u2028"'),
        stop(0),
    ]


def test_the_end_counts_cached_tokens_apart() -> None:
    one = stream(call())
    one.event(text(0, "a"))
    last = end(0, output_tokens=5, cached_tokens=2)
    one.event(last)
    assert last.finish is not None
    assert events(one.end(figures(call(), {"c-0": last.finish}))).decode() == (
        event(
            "message_delta",
            f'"delta":{{"stop_reason":"end_turn","stop_sequence":null}},{USAGE % (1, 2, 5)}',
        )
        + event("message_stop")
    )


def test_a_call_is_a_block_of_its_own_and_its_arguments_come_as_they_are_written() -> None:
    steps = (text(0, "Well: <tool_call>\n{"), text(0, '"name":"f","arguments":{"a":'), text(0, ' "é"}}'))
    chunks = streamed(renderer(), call(tool_calls=HERMES), *steps, text(0, "\n</tool_call>"), end(0))
    assert chunks == [
        start(0, '"type":"text","text":""') + delta(0, '"type":"text_delta","text":"Well:"'),
        stop(0)
        + start(1, '"type":"tool_use","id":"toolu_1","name":"f","input":{}')
        + delta(1, '"type":"input_json_delta","partial_json":"{\\"a\\":"'),
        delta(1, '"type":"input_json_delta","partial_json":" \\"é\\"}"'),
        "",
        stop(1),
    ]


def test_all_kinds_of_parts_in_one_answer() -> None:
    parts = (
        ThinkingText("a"),
        ThinkingText("b"),
        Content("c"),
        CallBegin("f"),
        CallArguments("{}"),
        CallBegin("g"),
    )
    of = scripted(*parts, CallArguments('{"x":'), CallArguments("1}"))
    steps = (text(0, "12345678"), end(0))
    assert "".join(streamed(renderer(), of, *steps)) == (
        start(0, '"type":"thinking","thinking":"","signature":""')
        + delta(0, '"type":"thinking_delta","thinking":"a"')
        + delta(0, '"type":"thinking_delta","thinking":"b"')
        + delta(0, '"type":"signature_delta","signature":"unsigned"')
        + stop(0)
        + start(1, '"type":"text","text":""')
        + delta(1, '"type":"text_delta","text":"c"')
        + stop(1)
        + start(2, '"type":"tool_use","id":"toolu_1","name":"f","input":{}')
        + delta(2, '"type":"input_json_delta","partial_json":"{}"')
        + stop(2)
        + start(3, '"type":"tool_use","id":"toolu_2","name":"g","input":{}')
        + delta(3, '"type":"input_json_delta","partial_json":"{\\"x\\":"')
        + delta(3, '"type":"input_json_delta","partial_json":"1}"')
        + stop(3)
    )
    assert whole(of, *steps)["content"] == [
        {"type": "thinking", "thinking": "ab", "signature": "unsigned"},
        {"type": "text", "text": "c"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {"x": 1}},
    ]


def test_an_answer_without_text_has_no_blocks() -> None:
    assert whole(call(), end(0))["content"] == []
    assert streamed(renderer(), call(), end(0)) == [""]


def test_reasons_to_end() -> None:
    tools, cut = call(tool_calls=HERMES), msgspec.structs.replace(call(), context_ends_it=True)
    length = end(0, FinishReason.LENGTH)
    assert ending(call(), text(0, "a"), end(0)) == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ending(call(), length) == {"stop_reason": "max_tokens", "stop_sequence": None}
    full = {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
    assert ending(cut, length) == full
    named = {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert ending(call(), stopped("END")) == named
    assert ending(tools, text(0, CALL), end(0)) == {"stop_reason": "tool_use", "stop_sequence": None}
    assert ending(tools, text(0, CALL[:-30]), stopped("END")) == named


@pytest.mark.parametrize(
    ("written", "read"),
    [('{"a": "é"}', {"a": "é"}), ('{"a": "b', {"a": "b"}), ('{"a', {}), ("[1]", {}), ("", {}), ("{'a'}", {})],
)
def test_of_a_call_that_was_cut_the_beginning_is_told(written: str, read: object) -> None:
    of = scripted(CallBegin("f"), CallArguments(written))
    (block,) = whole(of, text(0, "12"), end(0, FinishReason.LENGTH))["content"]
    assert block["input"] == read


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_an_end_that_is_nobodys_result_is_an_error(reason: FinishReason) -> None:
    with pytest.raises(GenerationFailed):
        streamed(renderer(), call(), end(0, reason, error="broken"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GenerationFailed("broken"), "api_error"),
        (EngineUnavailable("Later."), "overloaded_error"),
        (InvalidRequest("Wrong.", code="invalid_value"), "invalid_request_error"),
    ],
)
def test_the_bytes_of_a_failure_in_a_stream(error: ServerError, kind: str) -> None:
    chunks = stream(call()).error(error_object(error, request_id="r"))
    fields = f'"error":{{"type":"{kind}","message":"{error}"}}'
    assert events(chunks).decode() == event("error", fields)


def test_who_waits_is_pinged() -> None:
    one, ping = stream(call()), event("ping")
    news = (one.waits(QueuePlace("c-0", 1, 5.0)), one.waits(ModelLoading(0.5)), one.silence())
    assert [events(chunks).decode() for chunks in news] == [ping, ping, ping]


def test_ids_look_like_anthropics_and_differ() -> None:
    first, second = new_tool_use_id(), new_tool_use_id()
    assert first.startswith("toolu_")
    assert len(first) == 30
    assert first != second
