"""The events of a response, byte by byte, and the object at its end."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from openai_cpu_server.api.asking.call import Call, ToolCallStyle
from openai_cpu_server.api.asking.renderer import Chunk
from openai_cpu_server.api.responses.body import ResponsesBody
from openai_cpu_server.api.responses.items import PREFIXES
from openai_cpu_server.api.responses.objects import new_response
from openai_cpu_server.api.responses.stream import ResponseStream
from openai_cpu_server.api.responses.writing import EventNumbers, ItemWriting
from openai_cpu_server.contract.messages import FinishReason, QueuePlace, TokenEvent
from openai_cpu_server.http.errors import ErrorBody, ErrorObject
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.prompt.tool_formats import (
    TOOL_FORMATS,
    CallArguments,
    CallBegin,
    Content,
    ThinkingText,
)
from tests.api.calls import PIECES, call, end, figures, scored, text

CALLS = ToolCallStyle(TOOL_FORMATS["demo"], "tool_calls")


def stream(
    one: Call, status: ResponseStatus = ResponseStatus.IN_PROGRESS, body: dict[str, object] | None = None
) -> ResponseStream:
    numbers = itertools.count(1)
    asked = ResponsesBody.model_validate(body or {})
    return ResponseStream(
        one,
        PIECES,
        new_response(asked, one, status, is_stored=True),
        now=lambda: 9.5,
        new_call_id=lambda: "call_1",
        new_item_id=lambda kind: f"{PREFIXES[kind]}{next(numbers)}",
    )


def told(one: ResponseStream, events: Sequence[TokenEvent]) -> list[Chunk]:
    """All that is told of events that end well."""
    chunks = [*one.begin()]
    for event in events:
        chunks += one.event(event)
    finish = events[-1].finish
    assert finish is not None
    return [*chunks, *one.end(figures(call(), {"c-0": finish}))]


def objects(chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
    return [json.loads(chunk.json) for chunk in chunks]


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def of_text(kind: str, num_deltas: int = 1) -> list[str]:
    return ["content_part.added", *[f"{kind}.delta"] * num_deltas, f"{kind}.done", "content_part.done"]


def test_the_events_of_a_message_byte_by_byte() -> None:
    chunks = told(stream(call()), [text(0, "Hi"), text(0, "\u2028!"), end(0)])
    assert [chunk.event for chunk in chunks] == [json.loads(chunk.json)["type"] for chunk in chunks]
    assert b"\n".join(chunk.json for chunk in chunks[2:-1]).decode() == "\n".join(
        [
            '{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"type":"message",'
            '"id":"msg_1","status":"in_progress","role":"assistant","content":[]}}',
            '{"type":"response.content_part.added","sequence_number":3,"item_id":"msg_1","output_index":0,'
            '"content_index":0,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}}',
            '{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,'
            '"content_index":0,"delta":"Hi","logprobs":[]}',
            '{"type":"response.output_text.delta","sequence_number":5,"item_id":"msg_1","output_index":0,'
            '"content_index":0,"delta":"\\u2028!","logprobs":[]}',
            '{"type":"response.output_text.done","sequence_number":6,"item_id":"msg_1","output_index":0,'
            '"content_index":0,"text":"Hi\\u2028!","logprobs":[]}',
            '{"type":"response.content_part.done","sequence_number":7,"item_id":"msg_1","output_index":0,'
            '"content_index":0,"part":{"type":"output_text","text":"Hi\\u2028!","annotations":[],"logprobs":[]}}',
            '{"type":"response.output_item.done","sequence_number":8,"output_index":0,"item":{"type":"message",'
            '"id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text",'
            '"text":"Hi\\u2028!","annotations":[],"logprobs":[]}]}}',
        ]
    )


def test_the_response_begins_empty_and_ends_whole() -> None:
    created, progress, *_, completed = objects(told(stream(call()), [text(0, "Hi"), end(0)]))
    assert created["type"] == "response.created"
    assert progress["type"] == "response.in_progress"
    assert created["response"] == progress["response"]
    assert created["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
    assert created["response"]["usage"] is None
    assert completed["type"] == "response.completed"
    response = completed["response"]
    assert response["output"][0]["content"][0]["text"] == "Hi"
    assert response["completed_at"] == 9
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + 2
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


def test_an_output_that_is_cut_is_incomplete() -> None:
    *_, item, last = objects(told(stream(call()), [text(0, "Hi"), end(0, FinishReason.LENGTH)]))
    assert item["item"]["status"] == "incomplete"
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["completed_at"] is None


def test_a_call_of_a_function_is_an_item() -> None:
    events = [text(0, 'Wait<|tool_call|>{"name": "f", "arguments": {"a"'), text(0, ": 1}}"), end(0)]
    found = objects(told(stream(call(tool_calls=CALLS)), events))
    call_kinds = ["function_call_arguments.delta"] * 2 + ["function_call_arguments.done"]
    assert kinds(found[2:]) == [
        *("output_item.added", *of_text("output_text"), "output_item.done"),
        *("output_item.added", *call_kinds, "output_item.done", "completed"),
    ]
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    assert found[-2]["output_index"] == 1
    assert found[-2]["item"] == {
        "type": "function_call",
        "id": "fc_2",
        "status": "completed",
        "call_id": "call_1",
        "name": "f",
        "arguments": '{"a": 1}',
    }
    assert found[-1]["response"]["output"][1] == found[-2]["item"]


def test_what_is_reasoned_is_an_item_before_the_message() -> None:
    writing = ItemWriting(EventNumbers(), lambda: "call_1")
    parts = [ThinkingText("Hm"), ThinkingText("."), Content("So"), CallBegin("f"), CallArguments("{}")]
    chunks = [chunk for part in parts for chunk in writing.write(part)] + writing.end(is_whole=True)
    written = ["output_item.added", *of_text("reasoning_text", 2), "output_item.done"]
    assert kinds(objects(chunks))[:7] == written
    reasoning, message, function_call = json.loads(msgspec.json.encode(writing.items()))
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"] == "So"
    assert function_call["arguments"] == "{}"


def test_scores_stand_beside_the_text_they_belong_to() -> None:
    event = text(0, "Hi", scored("H", -0.5, ("H", -0.5)), scored("i", -1.0))
    found = objects(told(stream(call(logprobs=1)), [event, end(0)]))
    delta = next(one for one in found if one["type"] == "response.output_text.delta")
    assert [entry["token"] for entry in delta["logprobs"]] == ["H", "i"]
    assert delta["logprobs"][0]["top_logprobs"] == [{"token": "H", "logprob": -0.5, "bytes": [72]}]
    assert found[-1]["response"]["output"][0]["content"][0]["logprobs"] == delta["logprobs"]


def test_an_empty_output_is_an_empty_message() -> None:
    *_, last = objects(told(stream(call()), [end(0)]))
    assert last["response"]["output"][0]["content"] == [
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    ]


PLACE = QueuePlace(id="c-0", position=3, first_token_ms=100.0)


def test_who_waits_is_queued_once_and_then_has_signs_of_life() -> None:
    one = stream(call())
    heard = objects(
        [*one.begin(), *one.waits(PLACE), *one.waits(PLACE), *one.lives(), *one.event(text(0, "Hi"))]
    )
    waits = ["created", "queued", "in_progress", "in_progress"]
    assert kinds(heard)[:5] == [*waits, "output_item.added"]
    assert [event["sequence_number"] for event in heard] == list(range(len(heard)))
    assert one.lives() == ()


def test_nothing_is_queued_behind_progress() -> None:
    one = stream(call())
    heard = kinds(objects([*one.begin(), *one.lives(), *one.waits(PLACE), *one.event(text(0, "Hi"))]))
    assert heard[:3] == ["created", "in_progress", "in_progress"]
    assert "queued" not in heard


def test_the_background_is_queued_until_something_comes() -> None:
    one = stream(call(), ResponseStatus.QUEUED, {"background": True})
    assert kinds(objects([*one.begin(), *one.waits(PLACE)])) == ["created", "queued"]
    assert one.response.status == "queued"
    assert kinds(objects(one.event(text(0, "Hi"))))[0] == "in_progress"


def test_a_failure_is_an_error_and_a_failed_response() -> None:
    one = stream(call())
    one.begin()
    one.event(text(0, "Hi"))
    error, last = objects(one.error(ErrorObject(ErrorBody("Oh.", "server_error", None, "generation_failed"))))
    assert error == {
        "type": "error",
        "sequence_number": 5,
        "code": "generation_failed",
        "message": "Oh.",
        "param": None,
    }
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "Oh."}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_the_object_says_what_was_asked_for() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    body = {
        "tools": [{"type": "web_search"}, tool],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": form},
        "reasoning": {"effort": "low", "summary": "auto"},
        "service_tier": "flex",
        "truncation": "auto",
        "max_output_tokens": 5,
    }
    (created,) = objects(stream(call(), body=body).begin())
    response = created["response"]
    assert response["tools"] == [{**tool, "description": None, "strict": False}]
    assert response["tool_choice"] == {"type": "function", "name": "f"}
    assert response["text"] == {"format": form, "verbosity": "medium"}
    assert response["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (response["service_tier"], response["truncation"]) == ("flex", "auto")
