"""The Responses API through the official SDK, on the real server."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

pytestmark = pytest.mark.native

HI: Any = {"model": "tiny", "input": "Tell me about the river.", "max_output_tokens": 12}
RIVERS: Any = {"type": "object", "properties": {"river": {"enum": ["Rhine", "Elbe"]}}, "required": ["river"]}
TOOL: Any = {
    "type": "function",
    "name": "water_level",
    "parameters": {**RIVERS, "additionalProperties": False},
}
TOOL |= {"description": "The level of a river", "strict": True}


class Answer(BaseModel):
    is_high: bool


def test_a_response_is_complete_and_stored(client: openai.OpenAI) -> None:
    response = client.responses.create(**HI, metadata={"k": "v"}, extra_body={"ignore_eos": True})
    assert response.object == "response"
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage.output_tokens == 12
    count = client.responses.input_tokens.count(model="tiny", input=HI["input"])
    assert count.input_tokens == response.usage.input_tokens
    assert client.responses.retrieve(response.id) == response
    items = client.responses.input_items.list(response.id).data
    assert [item.type for item in items] == ["message"]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_stream_has_the_text_of_the_whole_response(client: openai.OpenAI) -> None:
    whole = client.responses.create(**HI, temperature=0)
    with client.responses.stream(**HI, temperature=0) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert events[-1].type == "response.incomplete"


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model="tiny", input="Is the water high?", text_format=Answer, max_output_tokens=60
    )
    assert isinstance(response.output_parsed, Answer)


def test_a_function_is_called_and_its_result_is_used(client: openai.OpenAI) -> None:
    params: Any = {**HI, "max_output_tokens": 100, "tools": [TOOL], "tool_choice": "required"}
    response = client.responses.create(**params, parallel_tool_calls=False)
    (call,) = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name == "water_level"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3 m"}
    second = client.responses.create(
        **{**params, "input": [result], "tool_choice": "none", "max_output_tokens": 8},
        previous_response_id=response.id,
    )
    assert second.output_text
    resent: Any = [{"role": "user", "content": HI["input"]}, call.model_dump(exclude_none=True), result]
    third = client.responses.create(model="tiny", input=resent, store=False, max_output_tokens=8)
    assert third.store is False


def test_later_turns_find_their_prompts_cached(client: openai.OpenAI) -> None:
    """Calls, cut outputs and all white space stand in the next prompt as they were sampled."""
    instructions = "The river and the bridge. " * 30
    previous, total = None, 0
    for turn in range(6):
        params: Any = {"model": "tiny", "input": f"{turn}?", "instructions": instructions, "temperature": 1.5}
        params |= {"max_output_tokens": 30, "extra_body": {"seed": turn}}
        response = client.responses.create(**params, previous_response_id=previous)
        usage = response.usage
        if previous is not None:
            assert usage.input_tokens_details.cached_tokens >= total - 1  # the last token was never computed
        total = usage.total_tokens
        previous = response.id


def test_a_websocket_continues_from_a_response_that_is_not_stored(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        texts, previous = [], None
        for _ in range(2):
            connection.response.create(**HI, store=False, previous_response_id=previous)
            events = [connection.recv()]
            while events[-1].type not in ("error", "response.failed", "response.incomplete"):
                events.append(connection.recv())
            event = events[-1]
            assert event.type == "response.incomplete", event
            texts.append(event.response.output_text)
            previous = event.response.id
        connection.send({"type": "response.create", "input": "hi", "previous_response_id": "resp_0"})
        refused: Any = connection.recv()
        assert refused.type == "error"
    assert all(texts)
