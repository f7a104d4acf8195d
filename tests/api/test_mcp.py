"""Tools of MCP servers in `/v1/responses`, with a real server of the official package and a scripted engine.

OpenAI's own types validate the answers.
"""

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
    with serving_tools() as server_url:
        yield server_url


class ScriptedEngine(FakeEngine):
    """Answer each request with the next output; the last output repeats."""

    def __init__(self, *outputs: str) -> None:
        super().__init__()
        self._outputs = list(outputs)
        self.app: Starlette

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        self.text = self._outputs.pop(0) if len(self._outputs) > 1 else self._outputs[0]
        return super().generate(requests)

    @property
    def prompts(self) -> list[str]:
        return [FakeTokenizer().decode(list(request.tokens), special=True) for request in self.submitted]


def call(name: str, **arguments: object) -> str:
    return "<|tool_call|>" + json.dumps({"name": name, "arguments": arguments})


@asynccontextmanager
async def serving(
    engine: ScriptedEngine,
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


async def post(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/v1/responses", json={"input": "hi", "tools": [NEVER], **fields})


async def create(http: httpx.AsyncClient, **fields: object) -> Json:
    answer = await post(http, **fields)
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=False)
    return dict(answer.json())


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_a_model_calls_a_tool_and_continues_with_its_result(url: str) -> None:
    engine = ScriptedEngine(call("tools.add", a=1, b=2), "It is 3.")
    async with serving(engine, url) as http:
        response = await create(http)
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
        tool_list, mcp_call, message = response["output"]
        assert {tool["name"] for tool in tool_list["tools"]} >= {"add", "broken"}
        assert (mcp_call["name"], mcp_call["server_label"], mcp_call["output"]) == ("add", "tools", "3")
        assert (mcp_call["status"], json.loads(mcp_call["arguments"])) == ("completed", {"a": 1, "b": 2})
        assert message["content"][0]["text"] == "It is 3."
        first, second = engine.submitted
        assert first.id == second.id == f"{response['id']}/0"
        assert response["usage"]["input_tokens"] == len(first.tokens) + len(second.tokens)
        # The second prompt is the first one, followed by the call as the model wrote it.
        assert second.tokens[: len(first.tokens)] == first.tokens
        assert engine.prompts[1].count("tools.add") == engine.prompts[0].count("tools.add") + 1
        metrics = (await http.get("/metrics")).text
        assert 'ocs_mcp_calls_total{outcome="completed",server="tools"} 1.0' in metrics
        follow_up = await create(http, input="and now?", previous_response_id=response["id"])
        assert kinds(follow_up) == ["message"]
        assert "It is 3." in engine.prompts[2]


async def test_a_stream_has_openais_events_in_their_order(url: str) -> None:
    async with serving(ScriptedEngine(call("tools.add", a=1, b=2), "3"), url) as http:
        all_events: list[Any] = events(await post(http, stream=True))
    parsed = [_EVENTS.validate_python(event) for event in all_events]
    assert [event.sequence_number for event in parsed] == list(range(len(all_events)))
    names = [event["type"].removeprefix("response.") for event in all_events]
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
    (completion,) = [event for event in all_events if event["type"] == "response.mcp_call.completed"]
    assert completion["duration_ms"] > 0
    arguments = "".join(event["delta"] for event in all_events if event["type"].endswith("arguments.delta"))
    assert json.loads(arguments) == {"a": 1, "b": 2}
    items = [event["item"] for event in all_events if event["type"].endswith("item.done")]
    assert all_events[-1]["response"]["output"] == items


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("broken", {}, "broken"),
        ("add", {"a": "x"}, "validation"),
        ("long_text", {"size": 5000}, "more than 4096 bytes"),
    ],
)
async def test_the_model_sees_a_failed_call(url: str, name: str, arguments: Json, reason: str) -> None:
    engine = ScriptedEngine(call(f"tools.{name}", **arguments), "Sorry.")
    async with serving(engine, url, limits=McpLimits(result_bytes=4096)) as http:
        response = await create(http)
    _, mcp_call, message = response["output"]
    assert (mcp_call["status"], mcp_call["output"]) == ("failed", None)
    assert reason in mcp_call["error"]
    assert message["content"][0]["text"] == "Sorry."
    assert "Error: " in engine.prompts[1]


async def test_a_server_that_is_not_there_offers_no_tools(url: str) -> None:
    async with serving(ScriptedEngine("Hello."), "http://127.0.0.1:9/mcp") as http:
        response = await create(http)
        tool_list, message = response["output"]
        assert (tool_list["tools"], message["content"][0]["text"]) == ([], "Hello.")
        assert tool_list["error"]
        all_events: list[Any] = events(await post(http, stream=True))
        assert "response.mcp_list_tools.failed" in [event["type"] for event in all_events]
        card = (await http.get("/v1/mcp")).json()["data"][0]
        assert (card["name"], card["state"], card["tools"]) == ("tools", "failed", None)
        function = {"type": "mcp", "server_label": "tools", "name": "add"}
        for choice in ("required", function, {"type": "mcp", "server_label": "tools"}):
            refusal = error_of(await post(http, tool_choice=choice))
            assert refusal["param"] == "tools[0]"
            assert str(refusal["message"]).startswith("The MCP server 'tools' cannot be used: ")


async def test_a_call_waits_for_approval_and_is_made_then(url: str) -> None:
    tool = {**NEVER, "require_approval": "always"}
    engine = ScriptedEngine(call("tools.add", a=2, b=2), "4.")
    async with serving(engine, url) as http:
        first = await create(http, tools=[tool])
        assert kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
        request = first["output"][1]
        yes = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        second = await create(http, input=[yes], tools=[tool], previous_response_id=first["id"])
        assert kinds(second) == ["mcp_call", "message"]
        assert second["output"][0]["approval_request_id"] == request["id"]
        assert second["output"][0]["output"] == "4"
        # A repeated approval makes no second call.
        third = await create(http, input=[yes], tools=[tool], previous_response_id=second["id"])
        assert kinds(third) == ["message"]
        assert engine.prompts[2].count("tools.add") == engine.prompts[0].count("tools.add") + 1
        items = (await http.get(f"/v1/responses/{second['id']}/input_items")).json()["data"]
        assert [item["type"] for item in items] == ["mcp_approval_response"]


async def test_a_call_that_is_not_approved_is_not_made(url: str) -> None:
    engine = ScriptedEngine(call("tools.add", a=2, b=2), "Well.")
    async with serving(engine, url) as http:
        tool = {**NEVER, "require_approval": {"never": {"read_only": False}}}
        first = await create(http, tools=[tool], store=False)
        request = first["output"][1]
        no = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": False}
        history = [{"role": "user", "content": "hi"}, *first["output"], {**no, "reason": "too dear"}]
        second = await create(http, input=history, tools=[tool])
        assert kinds(second) == ["message"]
        assert "has not approved this call. too dear" in engine.prompts[1]
        unknown = await post(http, input=[{**no, "approval_request_id": "mcpr_0"}])
        assert error_of(unknown)["param"] == "input[0].approval_request_id"
        approval = [request, {**no, "approve": True}]
        without_server = await post(http, input=approval, tools=[])
        assert error_of(without_server)["code"] == "unknown_mcp_tool"
        without_tool = await post(http, input=approval, tools=[{**tool, "allowed_tools": ["broken"]}])
        assert error_of(without_tool)["code"] == "unknown_mcp_tool"


async def test_rounds_calls_and_the_output_of_all_rounds_have_limits(url: str) -> None:
    engine = ScriptedEngine(call("tools.add", a=1, b=2))
    async with serving(engine, url, limits=McpLimits(rounds=2)) as http:
        response = await create(http)
        assert kinds(response)[:3] == ["mcp_list_tools", "mcp_call", "mcp_call"]
        # The last round has no tools, so text that looks like a call stays text.
        assert (kinds(response)[3], len(engine.submitted)) == ("message", 3)
        limited = await create(http, max_tool_calls=1)
        assert kinds(limited).count("mcp_call") == 1
    output = call("tools.add", a=1, b=2)
    async with serving(ScriptedEngine(output, "It is three."), url) as http:
        truncated = await create(http, max_output_tokens=len(output) + 6)
        assert (truncated["status"], truncated["usage"]["output_tokens"]) == ("incomplete", len(output) + 6)
        assert truncated["output"][2]["content"][0]["text"] == "It is"


async def test_several_calls_at_once_and_one_of_the_clients_own(url: str) -> None:
    two = call("tools.add", a=1, b=2) + call("tools.odd_name")
    async with serving(ScriptedEngine(two, "done"), url) as http:
        response = await create(http)
        calls = [item for item in response["output"] if item["type"] == "mcp_call"]
        assert [(item["name"], item["output"]) for item in calls] == [("add", "3"), ("odd.name", "odd")]
    own = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    engine = ScriptedEngine(call("tools.add", a=1, b=2) + call("f"), "done")
    async with serving(engine, url) as http:
        response = await create(http, tools=[NEVER, own])
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "function_call"]
        call_id = response["output"][2]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "7"}
        await create(http, input=[output], tools=[NEVER, own], previous_response_id=response["id"])
        assert len(engine.submitted) == 2


async def test_a_tool_can_be_demanded_once(url: str) -> None:
    engine = ScriptedEngine(call("tools.add", a=1, b=2), "3")
    async with serving(engine, url) as http:
        choice = {"type": "mcp", "server_label": "tools", "name": "add"}
        response = await create(http, tool_choice=choice)
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
        assert engine.submitted[0].constraint is not None
        only = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "tools"}]}
        assert kinds(await create(http, tool_choice=only)) == ["mcp_list_tools", "message"]
        wrong = await post(http, tool_choice={"type": "mcp", "server_label": "other"})
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


async def test_an_unsupported_tool_is_refused_by_the_path_of_its_field(url: str) -> None:
    async with serving(ScriptedEngine("x"), url, allowed_hosts=["127.0.0.1", "mcp.example"]) as http:
        for fields, param in REFUSED:
            assert error_of(await post(http, tools=[{**NEVER, **fields}]))["param"] == param
        twice = await post(http, tools=[NEVER, NEVER])
        assert error_of(twice)["param"] == "tools[1].server_label"
        # The host is allowed, its address is not.
        private = await create(http, tools=[{**NEVER, "server_url": "http://127.0.0.1:9/mcp"}])
        assert "private" in private["output"][0]["error"]
        chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [NEVER]}
        error = error_of(await http.post("/v1/chat/completions", json=chat))
        assert error["param"] == "tools[0].type"
        assert "/v1/responses" in str(error["message"])


async def test_a_key_uses_the_servers_and_tools_that_it_lists(url: str, tmp_path: Path) -> None:
    keys = key_ring(tmp_path, all='mcp = ["*"]', one='mcp = ["tools/add"]', none="")
    engine = ScriptedEngine("Hello.")
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


async def test_the_stderr_tail_of_a_broken_program_are_for_administrators(tmp_path: Path) -> None:
    keys = key_ring(tmp_path, user='mcp = ["*"]', admin='mcp = ["*"]\nscopes = ["inference", "admin"]')
    program = "import sys; sys.exit('no token s3cret')"
    async with serving(ScriptedEngine("x"), "", program=program, keys=keys) as http:
        card = (await http.get("/v1/mcp/tools", headers=of("user"))).json()
        assert (card["state"], card["last_words"]) == ("failed", None)
        assert "s3cret" not in str(card)
        (card,) = (await http.get("/v1/mcp", headers=of("admin"))).json()["data"]
        assert card["last_words"] == ["no token s3cret"]


async def test_the_servers_and_their_tools_are_listed(url: str) -> None:
    async with serving(ScriptedEngine("x"), url, tools=frozenset({"add", "broken"})) as http:
        before = (await http.get("/v1/mcp")).json()["data"]
        assert [(card["state"], card["tools"]) for card in before] == [("idle", None)]
        card = (await http.get("/v1/mcp/tools")).json()
        assert (card["state"], [tool["name"] for tool in card["tools"]]) == ("ready", ["add", "broken"])
        assert card["tools"][0]["annotations"] == {"readOnlyHint": True}
        assert (await http.get("/v1/mcp/other")).status_code == 404
        counted = await http.post("/v1/responses/input_tokens", json={"input": "hi", "tools": [NEVER]})
        plain = await http.post("/v1/responses/input_tokens", json={"input": "hi"})
        assert counted.json()["input_tokens"] > plain.json()["input_tokens"] + 20


async def test_a_cancelled_or_late_response_ends_its_tool_call(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    engine = ScriptedEngine(*2 * [call("tools.sleep", marker=str(marker))], "done")
    async with serving(engine, url) as http:
        response = await create(http, background=True)
        await eventually(marker.exists)
        ended = (await http.post(f"/v1/responses/{response['id']}/cancel")).json()
        assert ended["status"] == "cancelled"
        assert ended["output"][1]["status"] == "incomplete"
        await eventually(lambda: marker.read_text() == "cancelled")
        marker.unlink()
        late = await post(http, timeout=0.5)
        assert (late.status_code, error_of(late)["code"]) == (408, "request_timeout")
        await eventually(lambda: not marker.exists() or marker.read_text() == "cancelled")


async def test_the_tokens_of_all_rounds_count_for_the_key(url: str, tmp_path: Path) -> None:
    outputs = call("tools.add", a=1, b=2), "It is 3."
    async with serving(ScriptedEngine(*outputs), url) as http:
        total = (await create(http))["usage"]["total_tokens"]
    enough, less = (f'mcp = ["tools"]\ntokens_per_minute = {tokens}' for tokens in (total, total - 20))
    keys = key_ring(tmp_path, ann=enough, bob=less)
    async with serving(ScriptedEngine(*outputs), url, keys=keys) as http:
        http.headers.update(of("ann"))
        assert (await create(http))["usage"]["total_tokens"] == total
        assert error_of(await post(http))["code"] == "rate_limit_exceeded"
    async with serving(ScriptedEngine(*outputs), url, keys=keys) as http:
        http.headers.update(of("bob"))
        all_events: list[Any] = events(await post(http, stream=True))
        assert all_events[-1]["type"] == "response.failed"
        assert all_events[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
        assert kinds(all_events[-1]["response"]) == ["mcp_list_tools", "mcp_call"]


async def test_a_result_too_long_for_the_context_is_replaced_by_a_notice(url: str) -> None:
    engine = ScriptedEngine(call("tools.long_text", size=6000), "Too long.")
    async with serving(engine, url) as http:
        response = await create(http)
        assert len(response["output"][1]["output"]) == 6000
        assert response["output"][2]["content"][0]["text"] == "Too long."
        assert "too long for the rest of the context" in engine.prompts[1]


async def test_rows_of_batches_and_sockets_call_tools_too(url: str, tmp_path: Path) -> None:
    output, row = call("tools.add", a=1, b=2), json.dumps({"input": "hi", "tools": [NEVER]}).encode()
    whole = ["mcp_list_tools", "mcp_call", "message"]
    async with ConfiguredServers({"tools": McpServerOptions(url=url)}, LIMITS, allowed_hosts=()) as servers:
        engine = ScriptedEngine(output, "3", output, "3")
        keyed = create_api(served(engine), OPTIONS, keys=key_ring(tmp_path, ann='mcp = ["*"]'), mcp=servers)
        assert kinds(json.loads((await keyed.run_row("/v1/responses", row, "ann")).body)) == whole
        open_to_all = create_api(served(engine), OPTIONS, mcp=servers)
        refused = await open_to_all.run_row("/v1/responses", row, "")
        assert json.loads(refused.body)["error"]["code"] == "unknown_mcp_server"
        async with opened(open_to_all.app, path="/v1/responses") as socket:
            socket.send({"type": "response.create", "input": "hi", "tools": [NEVER]})
            last_event = await socket.take(lambda event: event["type"] in ("response.completed", "error"))
            assert kinds(last_event["response"]) == whole


async def test_an_answer_that_is_stopped_calls_nothing_more(url: str) -> None:
    engine = ScriptedEngine(call("tools.add", a=1, b=2), "never sent")
    async with serving(engine, url) as http:
        engine.goes_on.clear()
        task = asyncio.create_task(create(http))
        await eventually(lambda: bool(engine.submitted))
        name = engine.requests()[0].id.partition("/")[0]
        stopped = await http.post(f"/v1/chat/completions/{name}/control", json={"action": "stop"})
        engine.goes_on.set()
        assert (stopped.status_code, len(engine.submitted)) == (200, 1)
        assert (await task)["status"] == "completed"


async def test_an_answer_is_stopped_while_its_tool_runs(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    engine = ScriptedEngine(call("tools.sleep", marker=str(marker)), "never sent")
    async with serving(engine, url) as http:
        body, headers = {"input": "hi", "tools": [NEVER]}, {"x-request-id": "sleepy"}
        task = asyncio.create_task(http.post("/v1/responses", json=body, headers=headers))
        await eventually(marker.exists)
        control = "/v1/chat/completions/sleepy/control"
        thinking = await http.post(control, json={"action": "stop_thinking"})
        assert error_of(thinking)["code"] == "not_thinking"
        assert (await http.post(control, json={"action": "stop"})).status_code == 200
        response = (await task).json()
        assert (response["status"], kinds(response)) == ("completed", ["mcp_list_tools", "mcp_call"])
        assert "stopped while" in response["output"][1]["error"]
        await eventually(lambda: marker.read_text() == "cancelled")
        ended = await http.post(control, json={"action": "stop"})
        assert (error_of(ended)["code"], len(engine.submitted)) == ("request_ended", 1)


async def test_a_client_that_leaves_early_ends_its_approved_call(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    engine = ScriptedEngine(call("tools.sleep", marker=str(marker)), "never sent")
    async with serving(engine, url) as http:
        tool = {**NEVER, "require_approval": "always"}
        first = await create(http, tools=[tool])
        request_id = first["output"][1]["id"]
        yes = {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": True}
        body = {"input": [yes], "tools": [tool], "previous_response_id": first["id"], "background": True}
        async with exchange(engine.app, "/v1/responses", body) as leaving:
            await eventually(marker.exists)
            leaving.disconnect()
        await eventually(lambda: marker.read_text() == "cancelled")
        assert len(engine.submitted) == 1


async def test_a_summary_of_a_conversation_with_tools_stands_alone(url: str) -> None:
    engine = ScriptedEngine(call("tools.add", a=1, b=2), "It is 3.", "They added.")
    async with serving(engine, url) as http:
        first = await create(http)
        history = [{"role": "user", "content": "hi"}, *first["output"], {"type": "compaction_trigger"}]
        assert kinds(await create(http, input=history)) == ["compaction"]
        compact = await http.post("/v1/responses/compact", json={"input": history[:-1], "tools": [NEVER]})
        assert [item["type"] for item in compact.json()["output"]] == ["message", "compaction"]
