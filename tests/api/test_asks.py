"""All families ask in one language: errors name what the client sent, and nobody's words are rewritten."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.api.completions.routes import COMPLETIONS
from openai_cpu_server.api.generate.routes import GENERATE
from openai_cpu_server.api.messages.routes import MESSAGES_API
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.engine_client.answers import GenerationAnswer
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from tests.api.fake_engine import FakeEngine
from tests.api.serving import api, client, served
from tests.api.talking import MESSAGES, chat, complete, error_of, events, messages_error_of
from tests.fakes import STATEFUL_INFO

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
CHAT_PATH, TEXT, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES, OLD = "/v1/responses", "/v1/generate"
BODIES: dict[str, Json] = {
    CHAT_PATH: {"messages": MESSAGES},
    TEXT: {"prompt": "hi"},
    ANTHROPIC: {"messages": MESSAGES, "max_tokens": 5},
    RESPONSES: {"input": "hi"},
    OLD: {"prompt": "hi"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "strange"}}}
OPTIONS = ApiOptions(max_output_tokens=50, max_sequences=4)


@pytest.fixture
async def http(jobs: Jobs) -> AsyncIterator[httpx.AsyncClient]:
    """With a database, of which names are asked."""
    models = served(FakeEngine(says="Hello you"))
    async with client(create_api(models, OPTIONS, jobs=jobs).app) as one:
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
PLAIN_FORM = {"type": "json_schema", "schema": SCHEMA}
SERVERS = {"type": "web_search"}
NO_TOKENS = {"type": "compaction", "compact_threshold": 0}
CUSTOM = {"name": "f", "input_schema": {"properties": {"a": {"type": "strange"}}}}
LONG = "x" * 5000
EMPTY = {"role": "user", "content": []}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "now", "input": {}}]}
MUST = {"tools": [CUSTOM | {"input_schema": {}}], "tool_choice": {"type": "any"}}
WRONG: dict[str, list[tuple[Json, str, str | None]]] = {
    CHAT_PATH: [
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"messages": [EMPTY]}, "messages[0].content", "missing_required_parameter"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": [{"role": "user", "content": LONG}]}, "messages", "context_length_exceeded"),
        ({"model": "gpt-4o"}, "model", "model_not_found"),
        ({"priority": "high"}, "priority", "invalid_value"),
        ({"max_tokens": 51}, "max_tokens", None),
        ({"max_completion_tokens": 51}, "max_completion_tokens", None),
        ({"n": 5}, "n", "invalid_value"),
        ({"response_format": FORM}, "response_format.json_schema.schema.properties.a", "invalid_schema"),
        ({"tools": [tool("f", SCHEMA)]}, "tools[0].function.parameters.properties.a", "invalid_schema"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name", "invalid_value"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", None),
        ({"reasoning_effort": "low", "enable_thinking": False}, "enable_thinking", None),
        ({"regex": "a", "stop": "a"}, "stop", "invalid_value"),
        ({"grammar": 'root ::= "a"\nb := "c"'}, "grammar", "invalid_grammar"),
    ],
    TEXT: [
        ({"max_tokens": 51}, "max_tokens", None),
        ({"best_of": 5}, "best_of", "invalid_value"),
        ({"n": 5}, "n", "invalid_value"),
        ({"n": 2, "prompt": ["a", "b", "c"]}, "prompt", None),
        ({"regex": "a", "choice": ["a"]}, "choice", "invalid_value"),
        ({"tools": [tool("f")]}, "tools", "unknown_parameter"),
    ],
    RESPONSES: [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": [{"role": "user", "content": "hi", "id": "msg_\0"}]}, "input[0].id", None),
        ({"input": LONG}, "input", "context_length_exceeded"),
        ({"input": [{"role": "user", "content": LONG}], "truncation": "auto"}, "input", None),
        ({"max_output_tokens": 51}, "max_output_tokens", None),
        ({"conversation": {"id": ""}}, "conversation.id", None),
        ({"context_management": [{"type": "x"}]}, "context_management[0].type", None),
        ({"context_management": [NO_TOKENS]}, "context_management[0].compact_threshold", None),
        ({"previous_response_id": "resp_\0"}, "previous_response_id", "previous_response_not_found"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", None),
        ({"reasoning": {"effort": "low"}, "enable_thinking": False}, "enable_thinking", None),
        ({"enable_thinking": "no"}, "enable_thinking", "invalid_type"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", None),
        ({"include": ["nothing"]}, "include[0]", None),
        ({"stream": False, "stream_options": {}}, "stream_options", None),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", None),
        ({"tools": [SERVERS, function("f"), function("f")]}, "tools[2].name", "invalid_value"),
        ({"tools": [SERVERS, function("f", SCHEMA)]}, "tools[1].parameters.properties.a", "invalid_schema"),
        ({"tools": [SERVERS, function("f", {"type": "array"})]}, "tools[1].parameters.type", None),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", None),
        ({"text": {"format": SAID_FORM}}, "text.format.schema.properties.a", "invalid_schema"),
        ({"background": True, "store": False}, "store", None),
        ({"logit_bias": {"999999": 1}}, "logit_bias", None),
        ({"service_tier": 7}, "service_tier", None),
        ({"colour": "red"}, "colour", "unknown_parameter"),
    ],
    OLD: [
        ({"prompt": ""}, "prompt", "string_below_min_length"),
        ({"prompt": ["a"]}, "prompt", "invalid_type"),
        ({"prompt": LONG}, "prompt", "context_length_exceeded"),
        ({"priority": "urgent"}, "priority", "invalid_value"),
        ({"priority": 3}, "priority", "invalid_value"),
        ({"format": "yaml"}, "format", "invalid_value"),
        ({"format": "text", "json_schema": SCHEMA}, "format", "invalid_value"),
        ({"format": "json", "regex": "a"}, "regex", "invalid_value"),
        ({"json_schema": SCHEMA}, "json_schema.properties.a", "invalid_schema"),
        ({"json_schema": "{}"}, "json_schema", "invalid_type"),
        ({"max_tokens": 51}, "max_tokens", None),
        ({"n": 2}, "n", "invalid_value"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"audio": {}}, "audio", "unsupported_parameter"),
    ],
    ANTHROPIC: [
        ({"max_tokens": None}, "max_tokens", None),
        ({"messages": [{"role": "user", "content": LONG}]}, "prompt is too long", None),
        ({"output_format": PLAIN_FORM}, "output_format.schema.properties.a", None),
        ({"output_config": {"format": PLAIN_FORM}}, "output_config.format.schema.properties.a", None),
        ({"messages": [*MESSAGES, USE]}, "messages", None),
        ({"tools": [{"type": "web_search_1"}, CUSTOM]}, "tools[1].input_schema.properties.a", None),
        ({"tools": [{**CUSTOM, "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type", None),
        ({**MUST, "tool_choice": {"type": "tool", "name": "then"}}, "tool_choice", None),
        ({**MUST, "stop_sequences": ["a"]}, "stop_sequences", None),
        ({"cache": "no"}, "cache", None),
    ],
}
"""What each family refuses, by the field that its clients have written, and the code where it is its own."""


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"), [(path, *row) for path, rows in WRONG.items() for row in rows]
)
async def test_an_error_names_the_clients_own_field(
    http: httpx.AsyncClient, path: str, fields: Json, param: str, code: str | None
) -> None:
    """Before a stream begins, too."""
    for stream in {}, {"stream": True}:
        answer = await http.post(path, json={**BODIES[path], **stream, **fields})
        assert answer.status_code == (404 if code == "model_not_found" else 400), answer.text
        if path == ANTHROPIC:  # whose errors say it in the message
            said = str(messages_error_of(answer)["message"])
            ways = ("", "Invalid schema for ", "Invalid type for ", "Invalid value for ")
            assert said.startswith((f"{param}: ", *(f"{way}'{param}" for way in ways))), said
            continue
        error = error_of(answer)
        assert error["param"] == param, error
        assert code in (None, error["code"]), error
        if path == RESPONSES:  # which has no such fields
            assert "messages" not in answer.text
            assert "response_format" not in answer.text


LIMITS = {TEXT: "max_tokens", CHAT_PATH: "max_tokens", RESPONSES: "max_output_tokens"}


@pytest.mark.parametrize("path", BODIES)
async def test_a_lenient_server_says_what_it_ignores_and_takes_minus_one_for_no_limit(path: str) -> None:
    for lenient, status in ((True, 200), (False, 400)):
        async with client(create_api(served(FakeEngine(says="Hi")), ApiOptions(lenient=lenient)).app) as http:
            for stream in False, True:
                answer = await http.post(path, json={**BODIES[path], "stream": stream, "temprature": 1})
                assert answer.status_code == status
                assert not lenient or answer.headers["x-ignored-parameters"] == "temprature"
            if path in LIMITS:
                answer = await http.post(path, json={**BODIES[path], LIMITS[path]: -1})
                assert answer.status_code == status, answer.text


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
    error = await refused(http, RESPONSES, input=[*MESSAGES, call])
    assert error["param"] == "input"
    assert error["message"] == "The last message calls tools: the tools' answers must follow."


@pytest.mark.parametrize("family", [CHAT, COMPLETIONS, GENERATE, MESSAGES_API])
def test_what_all_say_alike_is_one_ask(family: Any) -> None:
    own = {CHAT: CHAT_PATH, COMPLETIONS: TEXT, GENERATE: OLD, MESSAGES_API: ANTHROPIC}
    body = {**BODIES[own[family]], "model": "m", "stream": True, "temperature": 0.5, "top_k": 3}
    ask = family.reader.read(json.dumps(body).encode(), lenient=False)
    assert (ask.model, ask.stream) == ("m", True)
    assert ask.sampling == Sampling(seed=ask.sampling.seed, temperature=0.5, top_k=3)


class Heard(FakeEngine):
    """It keeps what it is asked for."""

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        self.requested = [*requests]
        return super().generate(requests)


@pytest.mark.parametrize("path", BODIES)
async def test_an_engine_is_told_where_other_prompts_part_from_a_conversation(path: str) -> None:
    """Behind `<|user|>` and `<|assistant|>`; and a row of a batch says the same."""
    engine = Heard(STATEFUL_INFO, says="Hi")
    made = create_api(served(engine), ApiOptions(max_output_tokens=2))
    async with client(made.app) as http:
        assert (await http.post(path, json=BODIES[path])).status_code == 200
    (request,) = engine.requested
    assert [request.tokens[border - 1] for border in request.borders] == ([] if path == TEXT else [300, 301])
    await made.run_row(path, json.dumps(BODIES[path]).encode(), "")
    assert [again.borders for again in engine.requested] == [request.borders]


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


# -- schemas and grammars: exact error bodies, headers, the way to the engine --------------------------------


ODD = {"type": "string", "maxLength": 0, "pattern": r"(x)\1"}


def in_schema(schema: Json, **fields: object) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **fields}}


@pytest.mark.parametrize("stream", [True, False])
async def test_what_of_a_schema_cannot_be_enforced_is_an_error_or_named(
    http: httpx.AsyncClient, stream: bool
) -> None:
    for route in (chat, complete):
        wanted = in_schema({"properties": {"a": {"$ref": "#/nowhere"}}})
        response = await route(http, response_format=wanted, stream=stream)
        assert response.status_code == 400
        assert error_of(response) == {
            "message": "/properties/a: '$ref' to '#/nowhere' leads to nothing in this schema.",
            "type": "invalid_request_error",
            "param": "response_format.json_schema.schema.properties.a",
            "code": "unsupported_schema",
        }
        response = await route(
            http, response_format=in_schema(ODD, strict=False), stream=stream, max_tokens=1
        )
        assert response.status_code == 200
        unenforced = response.headers["x-unenforced-schema-keywords"]
        assert unenforced == "response_format.json_schema.schema.pattern"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("grammar", ['root ::= "("', 'root ::= "aa!"'], ids=["at its start", "on its way"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/generate", "/generate"])
async def test_a_grammar_that_cannot_be_followed_is_the_clients_error(
    process: EngineClient, path: str, grammar: str, stream: bool
) -> None:
    """SDKs repeat what is a server's error. The fake breaks at a bracket, and at an exclamation mark."""
    asked = {"messages": MESSAGES} if "chat" in path else {"prompt": "hi"}
    body = {**asked, "grammar": grammar, "max_tokens": 50, "stream": stream and "generate" not in path}
    async with client(api(process)) as http:
        answer = await http.post(path, json=body)
        if body["stream"]:
            (error,) = [told["error"] for told in events(answer) if "error" in told]
            assert isinstance(error, dict)
        else:
            assert answer.status_code == 400
            assert answer.headers["x-should-retry"] == "false"
            error = error_of(answer)
    assert (error["type"], error["code"]) == ("invalid_request_error", "grammar_failed")
    assert process.status().restarts == 0
