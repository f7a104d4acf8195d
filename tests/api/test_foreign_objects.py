"""D10: an object of another key has the same answer, byte for byte, as one that does not exist."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.mcp import McpLimits, McpServerOptions
from openai_cpu_server.http.keys import Scope
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.mcp_servers.connection import ConfiguredServers
from openai_cpu_server.models.registry import ModelRegistry, Preset
from tests.access_table import NEEDED
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, named, served
from tests.api.sockets import connected
from tests.api.talking import MESSAGES
from tests.api.test_adapters import adapter
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
SCOPES = 'scopes = ["inference", "metrics", "admin"]'
CHAT = "/v1/chat/completions"
ROW = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"fake","prompt":"a"}}\n'
BODIES: dict[str, Json] = {
    "input_file_id": {"input_file_id": "ID", "endpoint": "/v1/completions", "completion_window": "24h"},
    "previous_response_id": {"input": "hi", "previous_response_id": "ID"},
    "conversation": {"input": "hi", "conversation": "ID"},
    "item_reference": {"input": [{"type": "item_reference", "id": "ID"}]},
    "file of a response": {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "ID"}]}]},
    "file of a chat": {
        "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "ID"}}]}]
    },
    "file of a message": {
        "max_tokens": 2,
        "messages": [
            {"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "ID"}}]}
        ],
    },
    "model": {"model": "ID", "messages": MESSAGES},
    "lora": {"model": "fake", "lora": "ID", "prompt": "a"},
    "control": {"id": "ID", "action": "stop"},
    "streams": {"conversation_ids": ["ID"]},
    "server_label": {"input": "hi", "tools": [{"type": "mcp", "server_label": "ID"}]},
    "after": {},
}
"""Bodies with the id of an object, by the field that has it."""
IN_BODIES = [
    ("/v1/batches", "input_file_id"),
    ("/v1/responses", "previous_response_id"),
    ("/v1/responses", "conversation"),
    ("/v1/responses", "item_reference"),
    ("/v1/responses", "file of a response"),
    ("/v1/responses", "server_label"),
    ("/v1/responses/input_tokens", "previous_response_id"),
    ("/v1/responses/input_tokens", "conversation"),
    ("/v1/responses/compact", "previous_response_id"),
    (CHAT, "file of a chat"),
    ("/v1/messages", "file of a message"),
    (CHAT, "model"),
    ("/api/show", "model"),
    ("/v1/embeddings", "model"),
    ("/tokenize", "model"),
    ("/v1/completions", "lora"),
    (f"{CHAT}/control", "control"),
    ("/v1/streams/lookup", "streams"),
]
QUERIES = (
    "GET /v1/files?after=ID",
    "GET /v1/batches?after=ID",
    "GET /v1/stream?conv_id=ID",
    "DELETE /v1/stream?conv_id=ID",
    "GET /props?model=ID",
    "GET /slots?model=ID",
    "GET /tokenizer_info?model=ID",
    "GET /v1/model/info?model=ID",
)
BY_ID = sorted(name for name in NEEDED if "{" in name and "/page/" not in name and "/blobs/" not in name)


class World(NamedTuple):
    """Objects of the key ann, by kind. The keys bob and boss may not use her models."""

    ann: httpx.AsyncClient
    app: Starlette
    ids: dict[str, str]


async def create_objects(ann: httpx.AsyncClient) -> dict[str, str]:
    upload = {"file": ("a.jsonl", io.BytesIO(ROW))}
    file = (await ann.post("/v1/files", files=upload, data={"purpose": "batch"})).json()["id"]
    batch = (await ann.post("/v1/batches", json={**BODIES["input_file_id"], "input_file_id": file})).json()
    conversation = (await ann.post("/v1/conversations", json={"items": MESSAGES})).json()["id"]
    items = (await ann.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    response = (await ann.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2})).json()
    return {
        "a model": "secret",
        "an adapter": "secret:french",
        "a derived name": "polite",
        "an MCP server": "calculator",
        "a file": file,
        "a batch": batch["id"],
        "a conversation": conversation,
        "an item of a conversation": items[0]["id"],
        "a response": response["id"],
        "an item of a response": response["output"][0]["id"],
    }


def missing_id(object_id: str) -> str:
    """An id of the same form and length that no object has."""
    return object_id[:-2] + ("xx" if not object_id.endswith("xx") else "yy")


async def answers(
    http: httpx.AsyncClient, method: str, path: str, body: Json | None, object_id: str
) -> list[Any]:
    """Answers for this id and for a missing one, without the ids."""
    found = []
    for one in (object_id, missing_id(object_id)):
        content = None if body is None else json.dumps(body).replace("ID", one)
        sent = {"x-request-id": "r", "connection": "close"}
        answer = await http.request(method, path.replace("ID", one), content=content, headers=sent)
        headers = {n: value for n, value in answer.headers.items() if not n.startswith("x-ratelimit")}
        text = re.sub(r'"created(_at)?":\d+|"(id|request_id)":"\w+"', "", answer.text.replace(one, "ID"))
        found.append((answer.status_code, headers | {"x-request-id": "", "request-id": ""}, text))
    return found


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("foreign")
    ann = f'{SCOPES}\nmcp = ["calculator"]'
    others = {"bob": 'models = ["fake"]', "boss": f'{SCOPES}\nmodels = ["fake"]'}
    engine, secret = FakeEngine(), FakeEngine()
    await secret.load_adapter(adapter("french"))
    models = ModelRegistry([served(engine).default, named(secret, "secret")])
    models.derive("polite", Preset(base="secret", system="Be polite."))
    jobs = Jobs(open_database(str(folder / "jobs.db")), JobOptions(model="fake"))
    tools = McpServerOptions(url="http://127.0.0.1:9/mcp")
    mcp = ConfiguredServers({"calculator": tools}, McpLimits(), allowed_hosts=())
    keys = key_ring(folder, ann=ann, **others)
    app = create_api(models, OPTIONS, keys=keys, jobs=jobs, mcp=mcp).app
    never = asyncio.Event()
    task = asyncio.create_task(jobs.run(lambda *_: never.wait()))
    async with client(app, of("ann")) as of_ann:
        world = World(of_ann, app, await create_objects(of_ann))
        engine.goes_on.clear()
        body = {"messages": MESSAGES, "max_tokens": 9, "stream": True}
        headers = {**of("ann"), "x-conversation-id": "conv-of-ann"}
        async with exchange(app, CHAT, body, headers) as live:
            await eventually(lambda: bool(engine.requests()))
            world.ids["a live request"] = engine.requests()[0].id.partition("/")[0]
            world.ids["a stream"] = "conv-of-ann"
            yield world
            engine.goes_on.set()
            live.disconnect()
    await jobs.close()
    await task


async def check_same(world: World, method: str, path: str, body: Json | None, key: str = "bob") -> None:
    for kind, object_id in world.ids.items():
        async with client(world.app, of(key)) as http:
            foreign, missing = await answers(http, method, path, body, object_id)
        assert foreign == missing, f"{kind} of another key at {method} {path}"
        assert foreign[0] < 500, f"{method} {path}: {foreign}"


@pytest.mark.parametrize("route", BY_ID)
async def test_another_keys_id_in_the_path_is_missing(world: World, route: str) -> None:
    method, path = route.split()
    body = {"action": "stop"} if path.endswith("/control") else {"metadata": {}, "items": []}
    path = re.sub(r"\{.*?\}", "ID", path)
    key = "boss" if NEEDED[route] is Scope.ADMIN else "bob"
    await check_same(world, method, path, body if method == "POST" else None, key)


@pytest.mark.parametrize(("path", "field"), IN_BODIES)
async def test_another_keys_id_in_the_body_is_missing(world: World, path: str, field: str) -> None:
    await check_same(world, "POST", path, BODIES[field])


@pytest.mark.parametrize("query", QUERIES)
async def test_another_keys_id_in_the_query_is_missing(world: World, query: str) -> None:
    method, path = query.split()
    await check_same(world, method, path, None)


async def test_lists_and_errors_name_no_objects_of_other_keys(world: World) -> None:
    lists = [name for name, scope in NEEDED.items() if scope is Scope.INFERENCE and name.startswith("GET ")]
    bob = client(world.app, of("bob"))
    for name in lists:
        if "{" not in name and "events" not in name:
            answer = await bob.get(name.split()[1])
            for kind, object_id in world.ids.items():
                assert object_id not in answer.text, f"{kind} at {name}"
    for path, body in {
        CHAT: {"messages": MESSAGES},
        "/v1/embeddings": {"input": "a"},
        "/api/show": {},
    }.items():
        for model in ("nobody", "fake:nobody", "secret", "secret:nobody"):
            text = (await bob.post(path, json={**body, "model": model})).text
            assert "french" not in text
            assert "polite" not in text
            assert "secret" not in text.replace(f"'{model}'", "")


async def test_a_key_gets_its_own_objects(world: World) -> None:
    paths = {
        "a file": "/v1/files/",
        "a batch": "/v1/batches/",
        "a response": "/v1/responses/",
        "a conversation": "/v1/conversations/",
        "a model": "/v1/models/",
        "an adapter": "/v1/models/",
        "a derived name": "/v1/models/",
    }
    for kind, path in paths.items():
        assert (await world.ann.get(path + world.ids[kind])).status_code == 200, kind
    live = (await world.ann.get("/v1/requests")).json()["data"]
    assert [one["id"].partition("/")[0] for one in live] == [world.ids["a live request"]]


async def test_a_websocket_cannot_continue_a_response_of_another_key(world: World) -> None:
    texts = []
    for object_id in (world.ids["a response"], missing_id(world.ids["a response"])):
        async with connected(world.app, of("bob"), path="/v1/responses") as socket:
            await socket.accepted()
            socket.send({"type": "response.create", "input": "hi", "previous_response_id": object_id})
            texts.append(str(await socket.next()).replace(object_id, "ID"))
    assert texts[0] == texts[1]
