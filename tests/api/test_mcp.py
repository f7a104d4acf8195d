"""Tools of MCP servers in `/v1/responses`: a real server of the official package, an engine that says what it
is told, and OpenAI's own types for what is answered."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.mcp import McpLimits, McpServerOptions
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine_client.calls import GenerationAnswer
from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.mcp_servers.connection import ConfiguredServers
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, client, served
from tests.api.sockets import opened
from tests.api.talking import error_of, events
from tests.tool_server import serving_tools
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
NEVER: Json = {"type": "mcp", "server_label": "tools", "require_approval": "never"}
LIMITS = McpLimits()
_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving_tools() as one:
        yield one


class Scripted(FakeEngine):
    """Says these, one for each request in turn; the last one for ever."""

    def __init__(self, *outputs: str) -> None:
        super().__init__()
        self._outputs = list(outputs)
        self.heard: list[GenerationRequest] = []
        self.app: Starlette

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        self.heard += requests
        self.text = self._outputs.pop(0) if len(self._outputs) > 1 else self._outputs[0]
        return super().generate(requests)

    @property
    def prompts(self) -> list[str]:
        return [FakeTokenizer().decode(list(one.tokens), special=True) for one in self.heard]


def call(name: str, **arguments: object) -> str:
    return "<|tool_call|>" + json.dumps({"name": name, "arguments": arguments})


@asynccontextmanager
async def serving(
    engine: Scripted,
    url: str,
    *,
    program: str | None = None,
    keys: KeyRing | None = None,
    limits: McpLimits = LIMITS,
    tools: frozenset[str] | None = None,
    allowed_hosts: Sequence[str] = (),
) -> AsyncIterator[httpx.AsyncClient]:
    jobs = Jobs(open_database("sqlite://"), JobOptions(model="fake"))
    options = {"tools": McpServerOptions(url=url, tools=tools)}
    if program is not None:
        options = {"tools": McpServerOptions(command=(sys.executable, "-I", "-S", "-c", program))}
    async with ConfiguredServers(options, limits, allowed_hosts=allowed_hosts) as servers:
        api = create_api(served(engine), OPTIONS, jobs=jobs, keys=keys, mcp=servers)
        engine.app = api.app
        async with client(api.app) as http:
            yield http
        await api.settle()
        await jobs.close()


async def respond(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/v1/responses", json={"input": "hi", "tools": [NEVER], **fields})


async def made(http: httpx.AsyncClient, **fields: object) -> Json:
    answer = await respond(http, **fields)
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=False)
    return dict(answer.json())


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_a_model_calls_a_tool_and_goes_on_with_its_result(url: str) -> None:
    engine = Scripted(call("tools.add", a=1, b=2), "It is 3.")
    async with serving(engine, url) as http:
        response = await made(http)
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
        listed, called, said = response["output"]
        assert {tool["name"] for tool in listed["tools"]} >= {"add", "broken"}
        assert (called["name"], called["server_label"], called["output"]) == ("add", "tools", "3")
        assert (called["status"], json.loads(called["arguments"])) == ("completed", {"a": 1, "b": 2})
        assert said["content"][0]["text"] == "It is 3."
        first, second = engine.heard
        assert first.id == second.id == f"{response['id']}/0"
        assert response["usage"]["input_tokens"] == len(first.tokens) + len(second.tokens)
        # What it wrote stands in the next prompt as it wrote it.
        assert second.tokens[: len(first.tokens)] == first.tokens
        assert engine.prompts[1].count("tools.add") == engine.prompts[0].count("tools.add") + 1
        metrics = (await http.get("/metrics")).text
        assert 'ocs_mcp_calls_total{outcome="completed",server="tools"} 1.0' in metrics
        again = await made(http, input="and now?", previous_response_id=response["id"])
        assert kinds(again) == ["message"]
        assert "It is 3." in engine.prompts[2]


async def test_a_stream_has_openais_events_in_their_order(url: str) -> None:
    async with serving(Scripted(call("tools.add", a=1, b=2), "3"), url) as http:
        told: list[Any] = events(await respond(http, stream=True))
    parsed = [_EVENTS.validate_python(one) for one in told]
    assert [one.sequence_number for one in parsed] == list(range(len(told)))
    names = [one["type"].removeprefix("response.") for one in told]
    deltas = [name for name in names if name != "mcp_call_arguments.delta"]
    assert len(deltas) < len(names)
    assert deltas == [
        *("created", "in_progress"),
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.done"),
        *("mcp_call.completed", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    (called,) = [one for one in told if one["type"] == "response.mcp_call.completed"]
    assert called["duration_ms"] > 0
    arguments = "".join(one["delta"] for one in told if one["type"].endswith("arguments.delta"))
    assert json.loads(arguments) == {"a": 1, "b": 2}
    items = [one["item"] for one in told if one["type"].endswith("item.done")]
    assert told[-1]["response"]["output"] == items


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("broken", {}, "broken"),
        ("add", {"a": "x"}, "validation"),
        ("long_text", {"size": 5000}, "more than 4096 bytes"),
    ],
)
async def test_a_call_that_fails_is_told_to_the_model(url: str, name: str, arguments: Json, why: str) -> None:
    engine = Scripted(call(f"tools.{name}", **arguments), "Sorry.")
    async with serving(engine, url, limits=McpLimits(result_bytes=4096)) as http:
        response = await made(http)
    _, called, said = response["output"]
    assert (called["status"], called["output"]) == ("failed", None)
    assert why in called["error"]
    assert said["content"][0]["text"] == "Sorry."
    assert "Error: " in engine.prompts[1]


async def test_a_server_that_is_not_there_offers_no_tools(url: str) -> None:
    async with serving(Scripted("Hello."), "http://127.0.0.1:9/mcp") as http:
        response = await made(http)
        listed, said = response["output"]
        assert (listed["tools"], said["content"][0]["text"]) == ([], "Hello.")
        assert listed["error"]
        told: list[Any] = events(await respond(http, stream=True))
        assert "response.mcp_list_tools.failed" in [one["type"] for one in told]
        card = (await http.get("/v1/mcp")).json()["data"][0]
        assert (card["name"], card["state"], card["tools"]) == ("tools", "failed", None)
        chosen = {"type": "mcp", "server_label": "tools", "name": "add"}
        for choice in ("required", chosen, {"type": "mcp", "server_label": "tools"}):
            refusal = error_of(await respond(http, tool_choice=choice))
            assert refusal["param"] == "tools[0]"
            assert str(refusal["message"]).startswith("The MCP server 'tools' cannot be used: ")


async def test_a_call_waits_for_approval_and_is_made_then(url: str) -> None:
    tool = {**NEVER, "require_approval": "always"}
    engine = Scripted(call("tools.add", a=2, b=2), "4.")
    async with serving(engine, url) as http:
        first = await made(http, tools=[tool])
        assert kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
        asked = first["output"][1]
        yes = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
        second = await made(http, input=[yes], tools=[tool], previous_response_id=first["id"])
        assert kinds(second) == ["mcp_call", "message"]
        assert second["output"][0]["approval_request_id"] == asked["id"]
        assert second["output"][0]["output"] == "4"
        # Who says it once more makes no second call.
        third = await made(http, input=[yes], tools=[tool], previous_response_id=second["id"])
        assert kinds(third) == ["message"]
        assert engine.prompts[2].count("tools.add") == engine.prompts[0].count("tools.add") + 1
        items = (await http.get(f"/v1/responses/{second['id']}/input_items")).json()["data"]
        assert [item["type"] for item in items] == ["mcp_approval_response"]


async def test_a_call_that_is_not_approved_is_not_made(url: str) -> None:
    engine = Scripted(call("tools.add", a=2, b=2), "Well.")
    async with serving(engine, url) as http:
        tool = {**NEVER, "require_approval": {"never": {"read_only": False}}}
        first = await made(http, tools=[tool], store=False)
        asked = first["output"][1]
        no = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": False}
        given = [{"role": "user", "content": "hi"}, *first["output"], {**no, "reason": "too dear"}]
        second = await made(http, input=given, tools=[tool])
        assert kinds(second) == ["message"]
        assert "has not approved this call. too dear" in engine.prompts[1]
        unknown = await respond(http, input=[{**no, "approval_request_id": "mcpr_0"}])
        assert error_of(unknown)["param"] == "input[0].approval_request_id"
        elsewhere = [asked, {**no, "approve": True}]
        nowhere = await respond(http, input=elsewhere, tools=[])
        assert error_of(nowhere)["code"] == "unknown_mcp_tool"
        gone = await respond(http, input=elsewhere, tools=[{**tool, "allowed_tools": ["broken"]}])
        assert error_of(gone)["code"] == "unknown_mcp_tool"


async def test_rounds_calls_and_the_output_of_all_rounds_have_limits(url: str) -> None:
    always = Scripted(call("tools.add", a=1, b=2))
    async with serving(always, url, limits=McpLimits(rounds=2)) as http:
        response = await made(http)
        assert kinds(response)[:3] == ["mcp_list_tools", "mcp_call", "mcp_call"]
        # The last round has no tools, so what looks like a call is text.
        assert (kinds(response)[3], len(always.heard)) == ("message", 3)
        counted = await made(http, max_tool_calls=1)
        assert kinds(counted).count("mcp_call") == 1
    said = call("tools.add", a=1, b=2)
    async with serving(Scripted(said, "It is three."), url) as http:
        cut = await made(http, max_output_tokens=len(said) + 6)
        assert (cut["status"], cut["usage"]["output_tokens"]) == ("incomplete", len(said) + 6)
        assert cut["output"][2]["content"][0]["text"] == "It is"


async def test_several_calls_at_once_and_one_of_the_clients_own(url: str) -> None:
    two = call("tools.add", a=1, b=2) + call("tools.odd_name")
    async with serving(Scripted(two, "done"), url) as http:
        response = await made(http)
        calls = [item for item in response["output"] if item["type"] == "mcp_call"]
        assert [(one["name"], one["output"]) for one in calls] == [("add", "3"), ("odd.name", "odd")]
    own = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    engine = Scripted(call("tools.add", a=1, b=2) + call("f"), "done")
    async with serving(engine, url) as http:
        response = await made(http, tools=[NEVER, own])
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "function_call"]
        call_id = response["output"][2]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "7"}
        await made(http, input=[output], tools=[NEVER, own], previous_response_id=response["id"])
        assert len(engine.heard) == 2


async def test_a_tool_can_be_demanded_once(url: str) -> None:
    engine = Scripted(call("tools.add", a=1, b=2), "3")
    async with serving(engine, url) as http:
        choice = {"type": "mcp", "server_label": "tools", "name": "add"}
        response = await made(http, tool_choice=choice)
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
        assert engine.heard[0].constraint is not None
        only = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "tools"}]}
        assert kinds(await made(http, tool_choice=only)) == ["mcp_list_tools", "message"]
        wrong = await respond(http, tool_choice={"type": "mcp", "server_label": "other"})
        assert error_of(wrong)["param"] == "tool_choice.server_label"


REFUSED: list[tuple[Json, str]] = [
    ({"server_label": "other"}, "tools[0].server_label"),
    ({"server_url": "https://elsewhere.example/mcp"}, "tools[0].server_url"),
    ({"connector_id": "connector_gmail"}, "tools[0].connector_id"),
    ({"headers": {"a": "b"}}, "tools[0].headers"),
    ({"authorization": "secret"}, "tools[0].authorization"),
    ({"defer_loading": True}, "tools[0].defer_loading"),
    ({"require_approval": "maybe"}, "tools[0].require_approval"),
    ({"allowed_tools": 7}, "tools[0].allowed_tools"),
]


async def test_what_there_is_not_is_refused_by_its_path(url: str) -> None:
    async with serving(Scripted("x"), url, allowed_hosts=["127.0.0.1", "mcp.example"]) as http:
        for fields, param in REFUSED:
            assert error_of(await respond(http, tools=[{**NEVER, **fields}]))["param"] == param
        twice = await respond(http, tools=[NEVER, NEVER])
        assert error_of(twice)["param"] == "tools[1].server_label"
        # A host that may be asked, at an address that may not.
        private = await made(http, tools=[{**NEVER, "server_url": "http://127.0.0.1:9/mcp"}])
        assert "private" in private["output"][0]["error"]
        chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [NEVER]}
        there = error_of(await http.post("/v1/chat/completions", json=chat))
        assert there["param"] == "tools[0].type"
        assert "/v1/responses" in str(there["message"])


async def test_a_key_uses_the_servers_and_tools_that_it_lists(url: str, tmp_path: Path) -> None:
    keys = key_ring(tmp_path, all='mcp = ["*"]', one='mcp = ["tools/add"]', none="")
    engine = Scripted("Hello.")
    async with serving(engine, url, keys=keys) as http:

        async def names(key: str) -> list[str]:
            answer = await http.post("/v1/responses", json={"input": "hi", "tools": [NEVER]}, headers=of(key))
            return [tool["name"] for tool in answer.json()["output"][0]["tools"]]

        assert len(await names("all")) > 1
        assert await names("one") == ["add"]
        refused = await http.post("/v1/responses", json={"input": "hi", "tools": [NEVER]}, headers=of("none"))
        assert error_of(refused)["code"] == "unknown_mcp_server"
        assert (await http.get("/v1/mcp", headers=of("none"))).json()["data"] == []
        (card,) = (await http.get("/v1/mcp", headers=of("one"))).json()["data"]
        assert (card["state"], [tool["name"] for tool in card["tools"]]) == ("ready", ["add"])


async def test_the_last_words_of_a_broken_program_are_for_administrators(tmp_path: Path) -> None:
    keys = key_ring(tmp_path, user='mcp = ["*"]', admin='mcp = ["*"]\nscopes = ["inference", "admin"]')
    program = "import sys; sys.exit('no token s3cret')"
    async with serving(Scripted("x"), "", program=program, keys=keys) as http:
        card = (await http.get("/v1/mcp/tools", headers=of("user"))).json()
        assert (card["state"], card["last_words"]) == ("failed", None)
        assert "s3cret" not in str(card)
        (card,) = (await http.get("/v1/mcp", headers=of("admin"))).json()["data"]
        assert card["last_words"] == ["no token s3cret"]


async def test_the_servers_and_their_tools_are_listed(url: str) -> None:
    async with serving(Scripted("x"), url, tools=frozenset({"add", "broken"})) as http:
        before = (await http.get("/v1/mcp")).json()["data"]
        assert [(one["state"], one["tools"]) for one in before] == [("idle", None)]
        card = (await http.get("/v1/mcp/tools")).json()
        assert (card["state"], [one["name"] for one in card["tools"]]) == ("ready", ["add", "broken"])
        assert card["tools"][0]["annotations"] == {"readOnlyHint": True}
        assert (await http.get("/v1/mcp/other")).status_code == 404
        counted = await http.post("/v1/responses/input_tokens", json={"input": "hi", "tools": [NEVER]})
        plain = await http.post("/v1/responses/input_tokens", json={"input": "hi"})
        assert counted.json()["input_tokens"] > plain.json()["input_tokens"] + 20


async def test_the_clients_leaving_ends_the_tools_call(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    engine = Scripted(*2 * [call("tools.sleep", marker=str(marker))], "done")
    async with serving(engine, url) as http:
        response = await made(http, background=True)
        await eventually(marker.exists)
        ended = (await http.post(f"/v1/responses/{response['id']}/cancel")).json()
        assert ended["status"] == "cancelled"
        assert ended["output"][1]["status"] == "incomplete"
        await eventually(lambda: marker.read_text() == "cancelled")
        marker.unlink()
        late = await respond(http, timeout=0.5)
        assert (late.status_code, error_of(late)["code"]) == (408, "request_timeout")
        await eventually(lambda: not marker.exists() or marker.read_text() == "cancelled")


async def test_the_tokens_of_all_rounds_count_for_the_key(url: str, tmp_path: Path) -> None:
    said = call("tools.add", a=1, b=2), "It is 3."
    async with serving(Scripted(*said), url) as http:
        total = (await made(http))["usage"]["total_tokens"]
    enough, less = (f'mcp = ["tools"]\ntokens_per_minute = {tokens}' for tokens in (total, total - 20))
    keys = key_ring(tmp_path, ann=enough, bob=less)
    async with serving(Scripted(*said), url, keys=keys) as http:
        http.headers.update(of("ann"))
        assert (await made(http))["usage"]["total_tokens"] == total
        assert error_of(await respond(http))["code"] == "rate_limit_exceeded"
    async with serving(Scripted(*said), url, keys=keys) as http:
        http.headers.update(of("bob"))
        told: list[Any] = events(await respond(http, stream=True))
        assert told[-1]["type"] == "response.failed"
        assert told[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
        assert kinds(told[-1]["response"]) == ["mcp_list_tools", "mcp_call"]


async def test_a_result_for_which_the_context_has_no_room_is_not_told(url: str) -> None:
    engine = Scripted(call("tools.long_text", size=6000), "Too long.")
    async with serving(engine, url) as http:
        response = await made(http)
        assert len(response["output"][1]["output"]) == 6000
        assert response["output"][2]["content"][0]["text"] == "Too long."
        assert "too long for the rest of the context" in engine.prompts[1]


async def test_rows_of_batches_and_sockets_call_tools_too(url: str, tmp_path: Path) -> None:
    said, row = call("tools.add", a=1, b=2), json.dumps({"input": "hi", "tools": [NEVER]}).encode()
    whole = ["mcp_list_tools", "mcp_call", "message"]
    async with ConfiguredServers({"tools": McpServerOptions(url=url)}, LIMITS, allowed_hosts=()) as servers:
        engine = Scripted(said, "3", said, "3")
        keyed = create_api(served(engine), OPTIONS, keys=key_ring(tmp_path, ann='mcp = ["*"]'), mcp=servers)
        assert kinds(json.loads((await keyed.run_row("/v1/responses", row, "ann")).body)) == whole
        open_to_all = create_api(served(engine), OPTIONS, mcp=servers)
        refused = await open_to_all.run_row("/v1/responses", row, "")
        assert json.loads(refused.body)["error"]["code"] == "unknown_mcp_server"
        async with opened(open_to_all.app, path="/v1/responses") as socket:
            socket.send({"type": "response.create", "input": "hi", "tools": [NEVER]})
            told = await socket.take(lambda one: one["type"] in ("response.completed", "error"))
            assert kinds(told["response"]) == whole


async def test_an_answer_that_is_stopped_calls_nothing_more(url: str) -> None:
    engine = Scripted(call("tools.add", a=1, b=2), "never said")
    async with serving(engine, url) as http:
        engine.goes_on.clear()
        making = asyncio.create_task(made(http))
        await eventually(lambda: bool(engine.heard))
        name = engine.requests()[0].id.partition("/")[0]
        stopped = await http.post(f"/v1/chat/completions/{name}/control", json={"action": "stop"})
        engine.goes_on.set()
        assert (stopped.status_code, len(engine.heard)) == (200, 1)
        assert (await making)["status"] == "completed"


async def test_an_answer_is_stopped_while_its_tool_runs(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    engine = Scripted(call("tools.sleep", marker=str(marker)), "never said")
    async with serving(engine, url) as http:
        body, named = {"input": "hi", "tools": [NEVER]}, {"x-request-id": "sleepy"}
        making = asyncio.create_task(http.post("/v1/responses", json=body, headers=named))
        await eventually(marker.exists)
        control = "/v1/chat/completions/sleepy/control"
        thinking = await http.post(control, json={"action": "stop_thinking"})
        assert error_of(thinking)["code"] == "not_thinking"
        assert (await http.post(control, json={"action": "stop"})).status_code == 200
        response = (await making).json()
        assert (response["status"], kinds(response)) == ("completed", ["mcp_list_tools", "mcp_call"])
        assert "stopped while" in response["output"][1]["error"]
        await eventually(lambda: marker.read_text() == "cancelled")
        ended = await http.post(control, json={"action": "stop"})
        assert (error_of(ended)["code"], len(engine.heard)) == ("request_ended", 1)


async def test_a_client_that_leaves_early_ends_its_approved_call(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    engine = Scripted(call("tools.sleep", marker=str(marker)), "never said")
    async with serving(engine, url) as http:
        tool = {**NEVER, "require_approval": "always"}
        first = await made(http, tools=[tool])
        asked = first["output"][1]["id"]
        yes = {"type": "mcp_approval_response", "approval_request_id": asked, "approve": True}
        body = {"input": [yes], "tools": [tool], "previous_response_id": first["id"], "background": True}
        async with exchange(engine.app, "/v1/responses", body) as leaving:
            await eventually(marker.exists)
            leaving.disconnect()
        await eventually(lambda: marker.read_text() == "cancelled")
        assert len(engine.heard) == 1


async def test_a_summary_of_a_conversation_with_tools_stands_alone(url: str) -> None:
    engine = Scripted(call("tools.add", a=1, b=2), "It is 3.", "They added.")
    async with serving(engine, url) as http:
        first = await made(http)
        given = [{"role": "user", "content": "hi"}, *first["output"], {"type": "compaction_trigger"}]
        assert kinds(await made(http, input=given)) == ["compaction"]
        compact = await http.post("/v1/responses/compact", json={"input": given[:-1], "tools": [NEVER]})
        assert [item["type"] for item in compact.json()["output"]] == ["message", "compaction"]
