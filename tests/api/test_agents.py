"""Requests of agents and SDKs that other servers take: fields beside tools, forms of tools, empty turns."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from openai_cpu_server.api.generation.resolve import UNENFORCED
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import IGNORED
from tests.api.fake_engine import FakeEngine
from tests.api.following import Follower
from tests.api.resolving import chat, refused
from tests.api.serving import api, client
from tests.api.talking import MESSAGES
from tests.api.test_tool_formats import ANSWER, PLAIN, TOOLS, accepts, split
from tests.prompt.test_conversation import said

Json = dict[str, Any]
CREATE, CONTINUE = {"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}
ANTHROPIC = {"model": "fake", "messages": MESSAGES, "max_tokens": 8}


async def post(path: str, body: Json, *, lenient: bool = False) -> httpx.Response:
    async with client(api(FakeEngine(says="Hello"), ApiOptions(lenient=lenient))) as http:
        return await http.post(path, json=body)


@pytest.mark.anyio
@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("thread", [CREATE, CONTINUE, {"type": "fork"}])
async def test_threads_are_refused_so_that_an_sdk_sends_everything(
    lenient: bool, path: str, thread: Json
) -> None:
    """In the SDK, `ThreadState.recovers_from` reads `error.details`."""
    body = {**ANTHROPIC, "thread": thread}
    answer = await post(f"{path}?beta=true", body, lenient=lenient)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


OLLAMA = {"model": "fake", "messages": MESSAGES, "stream": False}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "previous_response_id": "resp_1"}),
        ("/v1/chat/completions", {"messages": MESSAGES, "conversation": "conv_1"}),
        ("/v1/completions", {"prompt": "a", "continue": True}),
        ("/v1/messages", {**ANTHROPIC, "previous_message_id": "msg_1"}),
        ("/v1/messages", {**ANTHROPIC, "compaction": {"type": "enabled"}}),
        ("/v1/messages", {**ANTHROPIC, "mcp_servers": [{"type": "url", "url": "https://a", "name": "a"}]}),
        ("/api/chat", {**OLLAMA, "conversation": {"id": "1"}}),
        ("/completion", {"prompt": "a", "thread": CONTINUE}),
    ],
)
async def test_fields_that_change_what_others_mean_are_never_ignored(path: str, body: Json) -> None:
    answer = await post(path, body, lenient=True)
    assert answer.status_code == 400
    assert "is not supported" in answer.text


@pytest.mark.anyio
async def test_fields_that_ask_for_nothing_are_taken() -> None:
    for more in ({"thread": None}, {"mcp_servers": []}, {"compaction": None}):
        assert (await post("/v1/messages", {**ANTHROPIC, **more})).status_code == 200
    body = {"messages": MESSAGES, "continue": None, "conversation": None}
    assert (await post("/v1/chat/completions", body)).status_code == 200


STOPS = ["Observation:", "Calling tools:"]


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, False),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}}, False),
        ({"response_format": ANSWER}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"response_format": ANSWER, "tools": TOOLS}, False),
        ({"tools": TOOLS}, True),
        ({"regex": r"\w+@\w+\.com\n"}, True),
        ({"choice": ["yes", "no"]}, True),
        ({}, True),
    ],
)
def test_stop_strings_never_cut_json_or_a_demanded_call(fields: Json, is_taken: bool) -> None:
    call = chat(**fields, stop=STOPS)
    assert call.requests[0].stop == (tuple(STOPS) if is_taken else ())
    assert ("stop" in call.headers.get(IGNORED, "").split(",")) is not is_taken


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DAYS = {"type": "object", "properties": {"days": {"type": "integer", "maximum": 5}}, "required": ["days"]}
AT = "tools[0].function.parameters"
JOINED: dict[str, tuple[Json, list[str], list[str], str]] = {
    "a reference": ({"$ref": "#/$defs/c", "$defs": {"c": CITY}}, ["city"], [""], ""),
    "a reference to a reference": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/c"}, "c": CITY}}, ["city"], [""], ""),
    "all of several": ({"allOf": [CITY, DAYS]}, ["city days"], ["city", "days"], ""),
    "all of references beside properties": (
        {**CITY, "allOf": [{"$ref": "#/$defs/d"}], "$defs": {"d": DAYS}}, ["city days"], ["city"], ""),
    "one of several": ({"oneOf": [CITY, DAYS]}, ["city", "days", ""], [], f"{AT}.oneOf"),
    "any of several beside properties": (
        {**CITY, "anyOf": [DAYS, {"required": ["city"]}]}, ["city", "city days"], ["days"], f"{AT}.anyOf"),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, [""], ["city"], f"{AT}.$ref"),
    "a reference elsewhere": ({"$ref": "https://example.org/a"}, [""], ["city"], f"{AT}.$ref"),
    "a circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, [""], ["city"], ""),
    "twice the same": ({"allOf": [DAYS, DAYS]}, ["days"], [""], f"{AT}.allOf[1].properties.days"),
}  # fmt: skip
VALUES = {"city": "<parameter=city>\nRome\n</parameter>\n", "days": "<parameter=days>\n3\n</parameter>\n"}


@pytest.mark.parametrize("name", JOINED)
def test_a_tools_schema_may_refer_to_others_at_its_root(name: str) -> None:
    schema, right, wrong, unenforced = JOINED[name]
    call = split(schema)
    for texts, is_taken in ((right, True), (wrong, False)):
        for text in texts:
            parameters = "".join(VALUES[each] for each in text.split())
            written = f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"
            assert accepts(call, PLAIN, written) is is_taken, written
    assert call.headers.get(UNENFORCED, "") == unenforced
    if unenforced:
        strict = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]
        assert refused(form="qwen3-coder", tools=strict, tool_choice="required").param == unenforced
    else:
        split(schema, strict=True)


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": None, "required": None},
        {"type": "object", "properties": {"a": {"type": "string", "enum": None, "items": None}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "null", "description": None}]}}},
    ],
)
def test_keywords_that_are_null_are_absent(parameters: Json) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    call = chat(tools=[tool], tool_choice="required", template="{{ tools | tojson }}")
    assert '": null' not in json.dumps(call.prompts[0].tokens)
    assert accepts(call, Follower(), '<|tool_call|>{"name":"f","arguments":{}}')


@pytest.mark.anyio
@pytest.mark.parametrize("parameters", [{"type": "object", "properties": None, "required": None}, None, {}])
async def test_a_client_in_go_writes_null_for_what_is_empty(parameters: Json | None) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}
    answer = await post("/api/chat", {**OLLAMA, "tools": [tool]})
    assert answer.status_code == 200, answer.text


def test_values_that_are_null_stay() -> None:
    parameters = {"type": "object", "properties": {"a": {"enum": [None, "x"], "default": None}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    call = chat(tools=[tool], tool_choice="required")
    assert accepts(call, Follower(), '<|tool_call|>{"name":"f","arguments":{"a":null}}')


EMPTY: dict[str, Json] = {
    "null": {"content": None},
    "no content": {},
    "no parts": {"content": []},
    "an empty text": {"content": ""},
    "no calls": {"content": None, "tool_calls": []},
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_answer_without_anything_is_taken(name: str) -> None:
    """The server gives such an answer when reasoning uses up `max_tokens`."""
    empty = {"role": "assistant", **EMPTY[name]}
    assert chat(messages=[said("user", "a"), empty, said("user", "b")]).prompts
    assert refused(messages=[{"role": "user", **EMPTY["null"]}]).param == "messages[0].content"


@pytest.mark.anyio
@pytest.mark.parametrize("more", [{}, {"server_url": "https://example.org/mcp"}, {"connector_id": "c"}])
async def test_tools_of_mcp_servers_are_refused_where_there_are_none(more: Json) -> None:
    tools = [{"type": "web_search"}, {"type": "mcp", "server_label": "files", **more}]
    answer = await post("/v1/responses", {"model": "fake", "input": "a", "tools": tools, "store": False})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools[1].type"
