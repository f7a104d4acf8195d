"""Requests of agents and SDKs that other servers accept: fields beside tools, and forms of tools."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from openai_cpu_server.api.generation.resolve import UNENFORCED
from openai_cpu_server.http.parse import IGNORED
from tests.api.captures import captured
from tests.api.following import Follower
from tests.api.resolving import chat, refused
from tests.api.test_tool_formats import ANSWER, PLAIN, TOOLS, accepts, split

Json = dict[str, Any]
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


def test_values_that_are_null_stay() -> None:
    parameters = {"type": "object", "properties": {"a": {"enum": [None, "x"], "default": None}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    call = chat(tools=[tool], tool_choice="required")
    assert accepts(call, Follower(), '<|tool_call|>{"name":"f","arguments":{"a":null}}')


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["", "?beta=true"])
async def test_a_request_of_claude_code(http: httpx.AsyncClient, query: str) -> None:
    """The first request of a conversation."""
    body = captured("claude_code")
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
    }
    body |= {"model": "fake", "messages": body["messages"][:1]}
    answer = await http.post(f"/v1/messages{query}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    ignored = answer.headers["x-ignored-parameters"].split(",")
    assert {"context_management", "tools[1] (web_search_20250305)"} <= set(ignored)
