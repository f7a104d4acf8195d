"""`/openapi.json` describes the served routes, and bodies and answers fit its schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
from starlette.applications import Starlette

from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.jobs.jobs import Jobs
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api, client, locked_api
from tests.api.talking import MESSAGES

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


@pytest.fixture(scope="module")
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
async def whole(engine: FakeEngine, jobs: Jobs) -> Starlette:
    """Application with every route."""
    return locked_api(engine, KeyRing(), jobs=jobs)


@pytest.fixture(scope="module")
async def described(whole: Starlette) -> Json:
    async with client(whole) as http:
        answer = await http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return dict(answer.json())


def refs(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        for inner in value.values():
            yield from refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from refs(inner)


def validate(described: Json, schema: Json, value: object) -> None:
    """Validate against a schema whose references point into the document. Raises ValidationError."""
    jsonschema.Draft202012Validator({**schema, "components": described["components"]}).validate(value)


def answer_schema(described: Json, method: str, path: str, status: int) -> Json:
    response = described["paths"][path][method]["responses"][str(status)]
    if "$ref" in response:
        response = described["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    return dict(response["content"]["application/json"]["schema"])


async def test_the_document_has_the_routes_of_this_server(engine: FakeEngine, described: Json) -> None:
    """A server without jobs lacks files, batches and usage."""
    async with client(api(engine)) as http:
        small = (await http.get("/openapi.json")).json()
    assert set(described["paths"]) - set(small["paths"]) == {
        path for path in described["paths"] if path.startswith(("/v1/files", "/v1/batches", "/v1/usage"))
    }


async def test_every_reference_resolves(described: Json) -> None:
    for ref in refs(described):
        node = described
        for part in ref.removeprefix("#/").split("/"):
            node = node[part]


async def test_all_schemas_are_json_schema(described: Json) -> None:
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_open_routes_need_no_key_and_the_others_name_the_scope(described: Json) -> None:
    paths = described["paths"]
    assert paths["/health"]["get"]["security"] == []
    assert paths["/v1/cache"]["delete"]["x-required-scope"] == "admin"
    assert paths["/v1/chat/completions"]["post"]["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert "401" in paths["/v1/models"]["get"]["responses"]
    assert "401" not in paths["/ready"]["get"]["responses"]


async def test_errors_are_described_by_their_codes(described: Json) -> None:
    responses = described["components"]["responses"]
    assert "`queue_full`" in responses["error429"]["description"]
    assert "`context_length_exceeded`" in responses["error400"]["description"]


CHAT = {"messages": MESSAGES, "max_tokens": 4, "seed": 1}
MESSAGE = {"messages": MESSAGES, "max_tokens": 4}
GOOD: list[tuple[str, Json | None]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "metadata": {"a": "b"}}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 4, "logprobs": 1, "echo": True}),
    ("/v1/messages", MESSAGE),
    ("/v1/messages", {**MESSAGE, "system": [{"type": "text", "text": "Be kind.", "cache_control": {}}]}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
    ("/v1/chat/completions", {**CHAT, "store": True, "modalities": ["text"], "audio": None}),
    ("/v1/chat/completions", {**CHAT, "messages": [{**MESSAGES[0], "cache_control": {}}]}),
    ("/generate", {"prompt": "hi", "max_tokens": 4, "priority": "low"}),
    ("/v1/generate/batch", {"requests": [{"prompt": "hi"}, {}], "max_tokens": 4}),
    ("/v1/model/info", None),
    ("/tokenize", {"content": "hé", "with_pieces": True}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/v1/models", None),
    ("/v1/requests", None),
    ("/v1/cache/stats", None),
    ("/v1/stats", None),
    ("/v1/files", None),
    ("/v1/batches", None),
    ("/health", None),
    ("/ready", None),
]


@pytest.mark.parametrize(("path", "body"), GOOD)
async def test_good_bodies_fit(whole: Starlette, described: Json, path: str, body: Json | None) -> None:
    method = "get" if body is None else "post"
    async with client(whole) as http:
        answer = await http.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    validate(described, answer_schema(described, method, path, 200), answer.json())
    if body is not None:
        content = described["paths"][path][method]["requestBody"]["content"]
        validate(described, content["application/json"]["schema"], body)


BAD: list[tuple[str, Json]] = [
    ("/v1/chat/completions", {}),
    ("/v1/chat/completions", {**CHAT, "temperature": "hot"}),
    ("/v1/chat/completions", {**CHAT, "messages": []}),
    ("/v1/chat/completions", {**CHAT, "colour": 1}),
    ("/v1/chat/completions", {**CHAT, "stop": [""]}),
    ("/v1/chat/completions", {**CHAT, "modalities": ["audio"]}),
    ("/v1/chat/completions", {**CHAT, "audio": {}}),
    ("/generate", {"prompt": ""}),
    ("/v1/generate/batch", {"requests": []}),
    ("/v1/completions", {"prompt": 5}),
    ("/v1/messages", {"messages": MESSAGES}),
    ("/v1/messages", {**MESSAGE, "colour": 1}),
    ("/v1/messages", {**MESSAGE, "messages": [{"role": "user", "content": [{"text": "x"}]}]}),
    ("/v1/messages/count_tokens", {}),
    ("/detokenize", {"tokens": ["a"]}),
    ("/v1/batches", {"input_file_id": "x"}),
]


@pytest.mark.parametrize(("path", "body"), BAD)
async def test_refused_bodies_do_not_fit(whole: Starlette, described: Json, path: str, body: Json) -> None:
    async with client(whole) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 400
    validate(described, answer_schema(described, "post", path, 400), answer.json())
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    with pytest.raises(jsonschema.ValidationError):
        validate(described, schema, body)


async def test_the_document_of_a_lenient_server_allows_unknown_fields(engine: FakeEngine) -> None:
    async with client(api(engine, msgspec.structs.replace(OPTIONS, lenient=True))) as http:
        lenient = (await http.get("/openapi.json")).json()
    validate(lenient, lenient["components"]["schemas"]["request.ChatBody"], {**CHAT, "colour": 1})


async def test_operation_ids_are_unique(described: Json) -> None:
    ids = [
        operation["operationId"]
        for item in described["paths"].values()
        for method, operation in item.items()
        if not method.startswith("x-")
    ]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in ids)
