"""All families ask in one language: errors name what the client sent, and nobody's words are rewritten."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.api.completions.routes import COMPLETIONS
from openai_cpu_server.api.generate.routes import GENERATE
from openai_cpu_server.api.messages.routes import MESSAGES_API as MESSAGES
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from tests.api.fake_engine import FakeEngine
from tests.api.serving import client, served

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
CHAT_PATH, TEXT, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES, OLD = "/v1/responses", "/v1/generate"
HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, Json] = {
    CHAT_PATH: {"messages": HI},
    TEXT: {"prompt": "hi"},
    ANTHROPIC: {"messages": HI, "max_tokens": 5},
    RESPONSES: {"input": "hi"},
    OLD: {"prompt": "hi"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "strange"}}}
OPTIONS = ApiOptions(max_output_tokens=50, max_sequences=4)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with client(create_api(served(FakeEngine(says="Hello you")), OPTIONS).app) as one:
        yield one


async def refused(http: httpx.AsyncClient, path: str, **fields: object) -> Json:
    answer = await http.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 400, answer.text
    return dict(answer.json()["error"])


def function(name: str, parameters: object = None) -> Json:
    return {"type": "function", "name": name, "parameters": parameters}


def tool(name: str, parameters: object = None) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
SAID_FORM = {"type": "json_schema", "name": "n", "schema": SCHEMA}
SERVERS = {"type": "web_search"}
CUSTOM = {"name": "f", "input_schema": {"properties": {"a": {"type": "strange"}}}}
THINKS = {"thinking_budget": 5}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT_PATH, {"max_tokens": 51}, "max_tokens"),
        (CHAT_PATH, {"max_completion_tokens": 51}, "max_completion_tokens"),
        (TEXT, {"max_tokens": 51}, "max_tokens"),
        (RESPONSES, {"max_output_tokens": 51}, "max_output_tokens"),
        (OLD, {"max_tokens": 51}, "max_tokens"),
        (CHAT_PATH, {"n": 5}, "n"),
        (TEXT, {"best_of": 5}, "best_of"),
        (TEXT, {"n": 5}, "n"),
        (TEXT, {"n": 2, "prompt": ["a", "b", "c"]}, "prompt"),
        (CHAT_PATH, {"response_format": FORM}, "response_format.json_schema.schema"),
        (RESPONSES, {"text": {"format": SAID_FORM}}, "text.format.schema"),
        (OLD, {"json_schema": SCHEMA}, "json_schema"),
        (
            ANTHROPIC,
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "output_config.format.schema",
        ),
        (CHAT_PATH, {"tools": [tool("f", SCHEMA)]}, "tools[0].function.parameters"),
        (RESPONSES, {"tools": [SERVERS, function("f", SCHEMA)]}, "tools[1].parameters"),
        (ANTHROPIC, {"tools": [{"type": "web_search_1"}, CUSTOM]}, "tools[1].input_schema"),
        (CHAT_PATH, {"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
        (RESPONSES, {"tools": [SERVERS, function("f"), function("f")]}, "tools[2].name"),
        (CHAT_PATH, {"logit_bias": {"999999": 1}}, "logit_bias"),
        (RESPONSES, {"logit_bias": {"999999": 1}}, "logit_bias"),
        (RESPONSES, {"reasoning": {"effort": "low"}, "enable_thinking": False}, "enable_thinking"),
        (CHAT_PATH, {"reasoning_effort": "low", "enable_thinking": False}, "enable_thinking"),
        (CHAT_PATH, {"regex": "a", "stop": "a"}, "stop"),
        (
            ANTHROPIC,
            {
                "tools": [CUSTOM | {"input_schema": {}}],
                "tool_choice": {"type": "any"},
                "stop_sequences": ["a"],
            },
            "stop_sequences",
        ),
        (OLD, {"regex": "a", "format": "json"}, "regex"),
        (OLD, {"prompt": "x" * 5000}, "prompt"),
        (RESPONSES, {"input": "x" * 5000}, "input"),
        (RESPONSES, {"input": [{"role": "user", "content": "x" * 5000}], "truncation": "auto"}, "input"),
    ],
)
async def test_an_error_names_the_clients_own_field(
    http: httpx.AsyncClient, path: str, fields: Json, param: str
) -> None:
    error = await refused(http, path, **fields)
    if path == ANTHROPIC:  # whose errors say it in the message
        assert error["message"].startswith((f"{param}: ", f"'{param}'", f"Invalid schema for '{param}"))
    else:
        assert error["param"] == param


@pytest.mark.parametrize(
    "name",
    ["tools[9]", "messages[7]", "max_tokens", "response_format", "reasoning_effort", "stop", "messages"],
)
@pytest.mark.parametrize("path", [CHAT_PATH, RESPONSES, ANTHROPIC])
async def test_users_words_in_an_error_stay_as_they_are(
    http: httpx.AsyncClient, path: str, name: str
) -> None:
    ways: dict[str, Json] = {
        CHAT_PATH: {"tools": [tool("f")], "tool_choice": tool(name)},
        RESPONSES: {"tools": [function("f")], "tool_choice": {"type": "function", "name": name}},
        ANTHROPIC: {"tools": [CUSTOM], "tool_choice": {"type": "tool", "name": name}},
    }
    error = await refused(http, path, **ways[path])
    assert error.get("param", "tool_choice") == "tool_choice"
    assert error["message"] == f"'tool_choice' names '{name}', which is none of the functions given."


async def test_a_conversation_that_ends_with_calls_is_blamed_by_its_name(http: httpx.AsyncClient) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "messages[3]", "arguments": "{}"}
    error = await refused(http, RESPONSES, input=[*HI, call])
    assert (error["param"], error["message"]) == (
        "input",
        "The last message calls tools: the tools' answers must follow.",
    )


@pytest.mark.parametrize("family", [CHAT, COMPLETIONS, GENERATE, MESSAGES])
def test_what_all_say_alike_is_one_ask(family: Any) -> None:
    own = {CHAT: CHAT_PATH, COMPLETIONS: TEXT, GENERATE: OLD, MESSAGES: ANTHROPIC}
    body = {**BODIES[own[family]], "model": "m", "stream": True, "temperature": 0.5, "top_k": 3}
    ask = family.reader.read(json.dumps(body).encode(), lenient=False)
    assert (ask.model, ask.stream) == ("m", True)
    assert ask.sampling == Sampling(seed=ask.sampling.seed, temperature=0.5, top_k=3)


async def test_a_row_of_a_batch_is_stored_as_a_response_only_where_it_says_so() -> None:
    jobs = Jobs(open_database("sqlite://"), JobOptions(model="fake"))
    api = create_api(served(FakeEngine(says="Hello")), ApiOptions(), jobs=jobs)
    stored = {}
    for store in (None, False, True):
        body = json.dumps({"input": "hi", "store": store}).encode()
        answer = await api.run_row(RESPONSES, body, "")
        made = json.loads(answer.body)
        async with client(api.app) as http:
            found = await http.get(f"{RESPONSES}/{made['id']}")
        stored[store] = (made["store"], found.status_code)
    assert stored == {None: (False, 404), False: (False, 404), True: (True, 200)}
    await api.settle()
    await jobs.close()
