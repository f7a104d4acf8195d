"""The Responses API through the official SDK, on the real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel

from tests.e2e.serving import sdk, tiny_server
from tests.e2e.test_batches import begin, counted, ended, jsonl, lines_of
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.native

HI: Any = {"model": "tiny", "input": "Tell me about the river.", "max_output_tokens": 12}
TOOL: Any = {
    "type": "function",
    "name": "water_level",
    "description": "The level of a river",
    "parameters": {
        "type": "object",
        "properties": {"river": {"enum": ["Rhine", "Elbe"]}},
        "required": ["river"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Answer(BaseModel):
    is_high: bool


def test_a_response_is_whole_and_kept(client: openai.OpenAI) -> None:
    response = client.responses.create(**HI, metadata={"k": "v"})
    assert response.object == "response"
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage.output_tokens == 12
    told = client.responses.input_tokens.count(model="tiny", input=HI["input"])
    assert told.input_tokens == response.usage.input_tokens
    assert client.responses.retrieve(response.id) == response
    items = client.responses.input_items.list(response.id).data
    assert [item.type for item in items] == ["message"]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_stream_says_what_the_whole_says(client: openai.OpenAI) -> None:
    whole = client.responses.create(**HI, temperature=0)
    with client.responses.stream(**HI, temperature=0) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert events[-1].type == "response.incomplete"


def test_a_form_is_parsed(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model="tiny", input="Is the water high?", text_format=Answer, max_output_tokens=60
    )
    assert isinstance(response.output_parsed, Answer)


def called(client: openai.OpenAI, **more: Any) -> tuple[Response, ResponseFunctionToolCall]:
    asked: Any = {**HI, "max_output_tokens": 100, "tools": [TOOL], "tool_choice": "required", **more}
    response = client.responses.create(**asked, parallel_tool_calls=False)
    (item,) = response.output
    assert isinstance(item, ResponseFunctionToolCall)
    return response, item


def test_a_function_is_called_and_its_result_gone_on_from(client: openai.OpenAI) -> None:
    response, call = called(client)
    assert call.name == "water_level"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3 m"}
    second = client.responses.create(
        model="tiny",
        input=[result],
        previous_response_id=response.id,
        tools=[TOOL],
        tool_choice="none",
        max_output_tokens=8,
    )
    assert second.output_text
    resent: Any = [{"role": "user", "content": HI["input"]}, call.model_dump(exclude_none=True), result]
    third = client.responses.create(model="tiny", input=resent, store=False, max_output_tokens=8)
    assert third.store is False


def test_a_custom_tools_text_obeys_its_grammar(client: openai.OpenAI) -> None:
    """In responses and in chats, whole and streamed, and as history."""
    grammar: Any = {"syntax": "lark", "definition": 'start: "level of " ("Rhine" | "Elbe") /[!?]{1,2}/'}
    tool: Any = {"type": "custom", "name": "ask", "format": {"type": "grammar", **grammar}}
    asked: Any = {**HI, "max_output_tokens": 100, "tools": [tool], "parallel_tool_calls": False}
    with client.responses.stream(**asked, tool_choice="required") as stream:
        deltas = [each.delta for each in stream if each.type == "response.custom_tool_call_input.delta"]
        response = stream.get_final_response()
    (call,) = response.output
    assert call.type == "custom_tool_call"
    assert re.fullmatch(r"level of (Rhine|Elbe)[!?]{1,2}", call.input)
    assert "".join(deltas) == call.input
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "high"}
    later = client.responses.create(
        **{**asked, "input": [result], "max_output_tokens": 1}, previous_response_id=response.id
    )
    assert later.status in ("completed", "incomplete")

    form: Any = {"type": "grammar", "grammar": grammar}
    tools: Any = [{"type": "custom", "custom": {"name": "ask", "format": form}}]
    messages: Any = [{"role": "user", "content": "Ask."}]
    chosen: Any = {"type": "custom", "custom": {"name": "ask"}}
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=tools, tool_choice=chosen)
    (said,) = answer.choices[0].message.tool_calls
    assert said.type == "custom"
    assert re.fullmatch(r"level of (Rhine|Elbe)[!?]{1,2}", said.custom.input)
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": said.id, "content": "high"}]
    assert client.chat.completions.create(model="tiny", messages=messages, max_tokens=1).choices


def test_later_turns_find_their_prompts_computed(client: openai.OpenAI) -> None:
    """Calls, cut outputs and all white space stand in the next prompt as they were sampled."""
    instructions = "The river and the bridge. " * 30
    previous, seen = None, 0
    for turn in range(6):
        response = client.responses.create(
            model="tiny",
            input=f"{turn}?",
            instructions=instructions,
            previous_response_id=previous,
            max_output_tokens=30,
            temperature=1.5,
            extra_body={"seed": turn},
        )
        usage = response.usage
        if previous is not None:
            assert usage.input_tokens_details.cached_tokens >= seen - 1  # the last token was never computed
        seen = usage.total_tokens
        previous = response.id


@pytest.fixture
def brief() -> Iterator[openai.OpenAI]:
    """Of a server whose summaries are short: a random model goes on to their limit."""
    with tiny_server("--max-output-tokens", "40") as process, sdk(process) as client:
        yield client


def test_a_conversation_is_kept_and_summed_up(brief: openai.OpenAI) -> None:
    client = brief
    talk = client.conversations.create(metadata={"about": "rivers"})
    first = client.responses.create(**HI, conversation=talk.id)
    managed: Any = [{"type": "compaction", "compact_threshold": 1}]
    second = client.responses.create(
        **{**HI, "max_output_tokens": 8}, conversation=talk.id, context_management=managed
    )
    assert first.conversation.id == second.conversation.id == talk.id
    items = list(client.conversations.items.list(talk.id, order="asc", limit=2))
    assert [item.type for item in items] == ["message"] * 3 + ["compaction", "message"]
    assert items[-1].id == second.output[-1].id
    added = client.conversations.items.create(talk.id, items=[{"role": "user", "content": "Bye."}])
    assert client.conversations.items.retrieve(added.first_id, conversation_id=talk.id) == added.data[0]
    client.conversations.items.delete(added.first_id, conversation_id=talk.id)
    told = client.conversations.update(talk.id, metadata={"about": "bridges"})
    assert client.conversations.retrieve(talk.id) == told
    assert client.conversations.delete(talk.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**HI, conversation=talk.id)


def test_a_response_in_the_background_is_found_again(client: openai.OpenAI) -> None:
    stream = client.responses.create(**HI, background=True, stream=True)
    first = next(iter(stream))
    assert first.type == "response.created"
    stream.close()
    rest = list(client.responses.retrieve(first.response.id, stream=True, starting_after=0))
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
    assert rest[-1].type == "response.incomplete"
    assert client.responses.retrieve(first.response.id) == rest[-1].response


def test_a_websocket_goes_on_from_what_is_not_stored(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        texts, previous = [], None
        for _ in range(2):
            connection.response.create(**HI, store=False, previous_response_id=previous)
            while (event := connection.recv()).type != "response.incomplete":
                assert event.type not in ("error", "response.failed"), event
            texts.append(event.response.output_text)
            previous = event.response.id
        connection.send({"type": "response.create", "input": "hi", "previous_response_id": "resp_0"})
        refused: Any = connection.recv()
        assert refused.type == "error"
    assert all(texts)


def test_a_client_that_leaves_ends_its_response(server: ServerProcess) -> None:
    asked = {**HI, "max_output_tokens": 1500}
    with sdk(server, timeout=0.5) as hasty, pytest.raises(openai.APITimeoutError):
        hasty.responses.create(**asked, extra_body={"ignore_eos": True})
    wait_until(lambda: httpx.get(server.url + "/v1/requests").json()["data"] == [])


def test_responses_are_rows_of_a_batch(client: openai.OpenAI) -> None:
    body = {**HI, "store": False}
    row: dict[str, object] = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    batch = ended(client, begin(client, jsonl([row]), endpoint="/v1/responses").id)
    assert counted(batch) == (1, 1, 0)
    (line,) = lines_of(client, batch.output_file_id)
    answer: Any = line["response"]
    assert answer["body"]["object"] == "response"
    usage: Any = batch.usage
    assert usage.output_tokens == 12
