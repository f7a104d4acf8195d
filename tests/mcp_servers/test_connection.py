"""A faulty MCP server fails the call that waits for it, and nothing else.

The children here write the protocol by hand because the official package makes none of these faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from openai_cpu_server.contract.mcp import McpLimits, McpServerOptions, McpServerState, McpUnavailable
from openai_cpu_server.errors import StartupError
from openai_cpu_server.mcp_servers.connection import ConfiguredServers, McpConnection
from openai_cpu_server.mcp_servers.escapes import PairedEscapes, paired_escapes
from openai_cpu_server.mcp_servers.stdio import UNREADABLE
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

FLOODED = "it has sent more than 4194304 bytes, or 4000 messages, at once"
DENSE = "it has sent a message with more than 51000 quotes, commas and brackets"
WHOLE_S = DEADLINE_S / 2
LIMITS = McpLimits(seconds=DEADLINE_S, result_bytes=1000)
CHILD = r"""
import json, os, sys, threading

sys.stdout.reconfigure(errors="surrogateescape")

def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

def call(name, arguments):
    if name == "hang":
        threading.Event().wait()
    if name == "die":
        sys.stderr.write("goodbye\n" * 100)
        sys.stderr.flush()
        os._exit(3)
    if name == "flood":
        while True:
            sys.stdout.write("y" * 65536)
    if name == "chatter":
        for _ in range(50_000):
            send({"method": "notifications/message", "params": {"level": "info", "data": "y" * 500}})
    if name == "nonsense":
        sys.stdout.write("this is no message\n")
        return {"content": 7}
    if name == "variables":
        return text(json.dumps(dict(os.environ)))
    if name == "halves":
        return text("a \ud83d b \ud83c\udf88 \\ud83d \udf88")
    return text("x" * arguments.get("size", 0) or "fine")

def text(words):
    return {"content": [{"type": "text", "text": words}]}

replies = {
    "word": '"no object"',
    "bytes": '{"content": [{"type": "text", "text": "\udcff"}]}',
    "number": '{"content": [], "structuredContent": {"a": ' + "9" * 5000 + "}}",
    "nested": '{"content": [], "structuredContent": {"a": ' + "[" * 300 + "]" * 300 + "}}",
    "abyss": '{"content": [], "structuredContent": {"a": ' + "[" * 20_000 + "]" * 20_000 + "}}",
    "dense": '{"content": [], "structuredContent": {"a": [' + "[], " * 30_000 + "[]]}}",
    "dense text": '{"content": [' + ", ".join(['{"type": "text", "text": ""}'] * 5000) + "]}",
}

names = ["hang", "die", "flood", "chatter", "nonsense", "variables", "fine", "halves"]
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    if "id" not in message:
        continue
    if method == "initialize":
        server = {"name": "raw", "version": "1"}
        version = params["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    elif method == "tools/call" and params["name"] in replies:
        reply = replies[params["name"]]
        sys.stdout.write('{"jsonrpc": "2.0", "id": %d, "result": %s}\n' % (message["id"], reply))
        sys.stdout.flush()
        continue
    elif method == "tools/call":
        result = call(params["name"], params["arguments"])
    else:
        send({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
        continue
    send({"id": message["id"], "result": result})
"""


def stdio(script: str = CHILD, **fields: object) -> McpServerOptions:
    return McpServerOptions(command=(sys.executable, "-I", "-S", "-c", script), **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def connection(options: McpServerOptions, limits: McpLimits = LIMITS) -> AsyncIterator[McpConnection]:
    server = McpConnection("raw", options, limits)
    try:
        yield server
    finally:
        await server.close()
        assert children() == [], "the child has not ended"


def children() -> list[psutil.Process]:
    processes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # the process has just ended
            if CHILD in process.cmdline():
                processes.append(process)
    return processes


@pytest.mark.parametrize(
    ("tool", "why"), [("die", "it has ended (exit_3)"), ("flood", FLOODED), ("chatter", FLOODED)]
)
async def test_a_server_that_breaks_is_started_again(tool: str, why: str) -> None:
    async with connection(stdio()) as server:
        assert (await server.call(tool, {})).text == why
        assert (server.status().state, server.status().error) == (McpServerState.FAILED, why)
        if tool == "die":
            await eventually(lambda: server.status().stderr_tail == ("goodbye",) * 10)
        assert (await server.call("fine", {})).text == "fine"
        assert (server.status().state, server.status().error) == (McpServerState.READY, None)
        assert server.status().stderr_tail == ()


async def test_a_list_of_tools_that_is_too_long_is_named_as_the_reason() -> None:
    async with connection(stdio(CHILD.replace("names = [", "names = ['again'] * 200_000 + ["))) as server:
        with pytest.raises(McpUnavailable) as refusal:
            await server.tools()
        assert (str(refusal.value), server.status().error) == (FLOODED, FLOODED)


async def test_a_server_that_hangs_is_started_again() -> None:
    async with connection(stdio(), McpLimits(seconds=6)) as server:
        await server.tools()
        (before,) = children()
        beside = asyncio.create_task(server.call("fine", {}))
        late = await server.call("hang", {})
        assert (late.text, late.is_error) == ("the tool has not answered within 6 seconds", True)
        await beside
        await asyncio.to_thread(before.wait)
        assert (await server.call("fine", {})).text == "fine"


async def test_an_invalid_or_huge_result_fails_its_call_only() -> None:
    async with connection(stdio()) as server:
        assert (await server.call("nonsense", {})).text == "its answer is not a result"
        assert (await server.call("fine", {"size": 2000})).text == "the result has more than 1000 bytes"
        assert (await server.call("fine", {})).text == "fine"
        assert len(children()) == 1


@pytest.mark.parametrize("tool", ["word", "bytes", "number", "nested"])
async def test_a_reply_that_cannot_be_read_fails_its_call_at_once(tool: str) -> None:
    async with connection(stdio(), McpLimits(seconds=WHOLE_S)) as server:
        await server.tools()
        (child,) = children()
        for _ in range(2):
            answer = await server.call(tool, {})
            assert (answer.text, answer.is_error) == (UNREADABLE, True)
        assert (await server.call("fine", {})).text == "fine"
        assert children() == [child], "the server has been restarted"


@pytest.mark.parametrize(("tool", "why"), [("abyss", UNREADABLE), ("dense", DENSE), ("dense text", DENSE)])
async def test_a_reply_that_would_cost_the_event_loop_too_much_ends_its_server(tool: str, why: str) -> None:
    async with connection(stdio(), McpLimits(seconds=WHOLE_S, result_bytes=1000)) as server:
        await server.tools()
        assert (await server.call(tool, {})).text == why
        assert (server.status().state, server.status().error) == (McpServerState.FAILED, why)
        assert (await server.call("fine", {})).text == "fine"


async def test_a_child_gets_only_the_listed_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCS_API_KEY", "secret")
    async with connection(stdio(env={"OWN": "7"}), McpLimits(seconds=20)) as server:
        variables = (await server.call("variables", {})).text
        assert '"OWN": "7"' in variables
        assert '"PATH"' in variables
        assert "secret" not in variables


async def test_the_log_has_a_limited_number_of_lines_of_a_child(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with connection(stdio()) as server:
        await server.call("die", {})
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("MCP server raw: goodbye") == 20


@pytest.mark.parametrize(
    ("options", "seconds", "reason"),
    [
        (McpServerOptions(command=("/nowhere/at-all",)), 20, "it has ended (exit_1)"),
        (stdio("import sys; sys.exit(4)"), 20, "it has ended (exit_4)"),
        (stdio("print('{}'); input(); input()"), 0.5, "it has not listed its tools within 0.5 seconds"),
        (McpServerOptions(url="http://127.0.0.1:9/"), 20, "All connection attempts failed"),
    ],
)
async def test_an_unreachable_server_gives_a_reason_and_is_not_retried_at_once(
    options: McpServerOptions, seconds: float, reason: str
) -> None:
    async with connection(options, McpLimits(seconds=seconds)) as server:
        for _ in range(2):
            with pytest.raises(McpUnavailable, match=r"^" + reason.replace("(", r"\(").replace(")", r"\)")):
                await server.tools()
        result = await server.call("fine", {})
        assert result.is_error
        assert "the next attempt is in" in result.text


HALVES = r'"a \ud83d b \ud83c\udf88 \\ud83d \uDF88"'


async def test_a_text_with_half_a_surrogate_pair_is_read() -> None:
    async with connection(stdio()) as server:
        assert (await server.call("halves", {})).text == "a \ufffd b 🎈 \\ud83d \ufffd"


def test_halves_of_pairs_are_replaced_wherever_a_body_is_split() -> None:
    data = HALVES.encode()
    whole = paired_escapes(data)
    assert json.loads(whole) == "a \ufffd b 🎈 \\ud83d \ufffd"
    assert len(whole) == len(data)
    for size in range(1, len(data)):
        escapes = PairedEscapes()
        parts = [escapes.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert b"".join([*parts, escapes.rest()]) == whole


JSON_TYPE, EVENT_TYPE = "content-type: application/json", "content-type: text/event-stream"
RESULT = b'{"jsonrpc": "2.0", "id": 1, "result": %b}'


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        (f"{JSON_TYPE}\r\ncontent-encoding: gzip", b"\x1f\x8b", None),
        (JSON_TYPE, b"[" + b"1," * (10 << 20) + b"1]", None),
        (EVENT_TYPE, b"data: " + b"1" * (10 << 20), None),
        (JSON_TYPE, RESULT % (b'{"a": [' + b"[]," * 30_000 + b"[]]}"), DENSE),
        (JSON_TYPE, RESULT % b'{"a": "\xff"}', UNREADABLE),
        (JSON_TYPE, RESULT % (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}"), UNREADABLE),
        (EVENT_TYPE, b"data: " + RESULT % b'"no object"' + b"\n\n", UNREADABLE),
        (JSON_TYPE, b"no JSON \x1b[31m", UNREADABLE),
    ],
)
async def test_replies_over_http_have_bounds_too(headers: str, body: bytes, reason: str | None) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\n{headers}\r\nconnection: close\r\n\r\n".encode() + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with connection(McpServerOptions(url=f"http://127.0.0.1:{port}/"), LIMITS) as server:
            with pytest.raises(McpUnavailable, match=reason):
                await server.tools()


def test_an_error_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.client", None)
    with pytest.raises(StartupError, match=r"need: .*python\S* -m pip install 'mcp[^']*'$"):
        ConfiguredServers({}, LIMITS, allowed_hosts=["*"])
