"""Structured output and tools over HTTP: exact error bodies, headers, the way to the engine."""

from __future__ import annotations

import httpx
import pytest

from openai_cpu_server.engine_client.client import EngineClient
from tests.api.serving import api, client
from tests.api.talking import MESSAGES, chat, complete, error_of, events

pytestmark = pytest.mark.anyio

ODD = {"type": "string", "maxLength": 0, "pattern": r"(x)\1"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", [chat, complete])
async def test_a_schema_that_cannot_be_enforced(http: httpx.AsyncClient, route: object, stream: bool) -> None:
    assert callable(route)
    schema = {"properties": {"a": {"$ref": "#/nowhere"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    response = await route(http, response_format=wanted, stream=stream)
    assert response.status_code == 400
    assert response.json() == {
        "error": {
            "message": "/properties/a: '$ref' to '#/nowhere' leads to nothing in this schema.",
            "type": "invalid_request_error",
            "param": "response_format.json_schema.schema.properties.a",
            "code": "unsupported_schema",
        }
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_a_header_names_what_was_not_enforced(http: httpx.AsyncClient, stream: bool) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": ODD, "strict": False}}
    response = await complete(http, response_format=wanted, stream=stream, max_tokens=0)
    assert response.status_code == 200
    assert response.headers["x-unenforced-schema-keywords"] == ("response_format.json_schema.schema.pattern")


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
