"""MCP over pipes of a child process, with limits. Its standard error is logged, and its process group ends
with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from openai_cpu_server.child_processes.spawn import child_environment, death_cause
from openai_cpu_server.contract.mcp import McpServerOptions
from openai_cpu_server.mcp_servers.escapes import paired_escapes

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

logger = logging.getLogger(__name__)

Streams = tuple[Any, Any]
"""Streams for reading and writing, whose types `mcp` does not export."""
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_LAUNCH = (
    f"import ctypes,os,sys;ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG},{_SIGKILL});"
    "os.getppid()==int(sys.argv[1]) or os._exit(0);os.execvp(sys.argv[2],sys.argv[2:])"
)
"""Let the kernel end the child with this process, which elsewhere only closes its pipe."""
_CHUNK_BYTES = 64 * 1024
_MOST_MESSAGES = 4000
_LEAVE_S, _KILL_S = 2.0, 0.5
"""Time to exit after its pipe is closed, and after SIGTERM."""
_MOST_LINES, _LINES_S, _LINE_CHARS = 20, 10.0, 400
"""Logged lines per period, its seconds, and characters of each line."""
_LAST_LINES = 10
UNREADABLE = "its answer cannot be read"
_MARKS = b',"[{'
_LONG_INT_CHARS = 1000
"""Python refuses integers of more than 4,300 digits."""


class ServerTraffic:
    def __init__(self, name: str, most_bytes: int, most_marks: int) -> None:
        self.name = name
        self.most_bytes = most_bytes
        self.most_marks = most_marks
        self.ended = asyncio.Event()
        self.cause = ""
        self.stderr_tail: deque[str] = deque(maxlen=_LAST_LINES)
        """Last lines of standard error, which may hold secrets."""
        self._num_bytes = self._num_marks = self._num_messages = 0

    def reset_counts(self) -> None:
        self._num_bytes = self._num_marks = self._num_messages = 0

    def count(self, data: bytes, num_messages: int) -> bool:
        """Return False if the server floods. Small messages and values cost more than their bytes."""
        self._num_bytes += len(data)
        self._num_marks += num_marks(data)
        self._num_messages += num_messages
        is_bounded = self._num_bytes <= 4 * self.most_bytes and self._num_marks <= 4 * self.most_marks
        return is_bounded and self._num_messages <= _MOST_MESSAGES

    @property
    def flooded(self) -> str:
        return f"it has sent more than {self.most_bytes} bytes, or {_MOST_MESSAGES} messages, at once"

    @property
    def dense(self) -> str:
        return f"it has sent a message with more than {self.most_marks} quotes, commas and brackets"


def num_marks(data: bytes | bytearray) -> int:
    """Count delimiters of JSON. Parsing costs the event loop 1 to 4 microseconds for each."""
    return sum(map(data.count, _MARKS))


@asynccontextmanager
async def stdio_streams(options: McpServerOptions, traffic: ServerTraffic) -> AsyncIterator[Streams]:
    pipes, process = await _started(options)
    to_session, read_stream = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
    write_stream, from_session = anyio.create_memory_object_stream["SessionMessage"](0)
    pumps = [
        asyncio.create_task(work)
        for work in (
            _read(process, traffic, to_session),
            _write(process, from_session),
            _log(process, traffic),
        )
    ]
    try:
        yield read_stream, write_stream
    finally:
        with anyio.CancelScope(shield=True):
            await _stopped(process, leave_s=_KILL_S if traffic.cause else _LEAVE_S)
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            pipes.close()  # what it leaves unread would keep them open
            for stream in (to_session, read_stream, write_stream, from_session):
                stream.close()


async def _started(options: McpServerOptions) -> tuple[asyncio.SubprocessTransport, Process]:
    """Start as `asyncio.create_subprocess_exec` does, but also return the transport."""
    command = options.command
    if sys.platform == "linux":
        command = (sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command)
    loop = asyncio.get_running_loop()
    pipes, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=_CHUNK_BYTES, loop=loop),
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=child_environment() | dict(options.env),
        cwd=options.cwd,
        start_new_session=True,
    )
    return pipes, Process(pipes, protocol, loop)


async def _read(
    process: Process, traffic: ServerTraffic, to_session: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    """Close the session's stream when the output ends or exceeds its limits."""
    assert process.stdout is not None
    buffer = bytearray()
    try:
        while chunk := await process.stdout.read(_CHUNK_BYTES):
            buffer += chunk
            if not traffic.count(chunk, chunk.count(b"\n")) or len(buffer) > traffic.most_bytes:
                traffic.cause = traffic.flooded
                return
            if b"\n" not in chunk:
                continue
            *lines, buffer = buffer.split(b"\n")
            for line in filter(bytearray.strip, lines):
                if num_marks(line) > traffic.most_marks:
                    traffic.cause = traffic.dense
                    return
                await to_session.send(_message(paired_escapes(bytes(line))))
    except RecursionError:
        traffic.cause = UNREADABLE
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the session is gone
    finally:
        if not traffic.cause:
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), 0.5)
            traffic.cause = f"it has ended ({death_cause(process.returncode)})"
        traffic.ended.set()
        to_session.close()


def _message(line: bytes) -> SessionMessage | Exception:
    """Fail the request of an invalid reply at once. The session drops other invalid messages. Raises
    RecursionError."""
    from mcp.shared.message import SessionMessage
    from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        if (request_id := _replied_id(line)) is None:
            return error
    failure = ErrorData(code=PARSE_ERROR, message=UNREADABLE)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=failure))


def _replied_id(line: bytes) -> int | str | None:
    """Return the id of the answered request, or None. `json` reads more than pydantic."""
    try:
        fields = json.loads(
            line.decode(errors="replace"),
            parse_int=lambda digits: int(digits) if len(digits) < _LONG_INT_CHARS else digits,
        )
    except ValueError:
        return None
    is_reply = isinstance(fields, dict) and ("result" in fields or "error" in fields)
    request_id = fields.get("id") if is_reply else None
    return request_id if isinstance(request_id, (int, str)) else None


async def _write(process: Process, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, anyio.ClosedResourceError):
        async for message in from_session:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()


async def _log(process: Process, traffic: ServerTraffic) -> None:
    assert process.stderr is not None
    window_s, num_logged, num_left_out = time.monotonic(), 0, 0
    rest = b""
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-_CHUNK_BYTES:]
        if time.monotonic() - window_s > _LINES_S:
            if num_left_out:
                logger.info("MCP server %s: %d more lines", traffic.name, num_left_out)
            window_s, num_logged, num_left_out = time.monotonic(), 0, 0
        for line in lines[-_LAST_LINES:]:
            traffic.stderr_tail.append(_printable(line))
        for line in lines:
            if num_logged >= _MOST_LINES:
                num_left_out += 1
                continue
            num_logged += 1
            logger.info("MCP server %s: %s", traffic.name, _printable(line))
    if rest:
        traffic.stderr_tail.append(_printable(rest))


def _printable(line: bytes) -> str:
    text = line[: 4 * _LINE_CHARS].decode(errors="replace")[:_LINE_CHARS].strip()
    return "".join(char if char.isprintable() else "?" for char in text)


async def _stopped(process: Process, *, leave_s: float) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    if await _has_ended(process, leave_s):
        _signal_group(process, signal.SIGKILL)  # what it has started, and left
        return
    _signal_group(process, signal.SIGTERM)
    if not await _has_ended(process, _KILL_S):
        _signal_group(process, signal.SIGKILL)
        await _has_ended(process, _KILL_S)


async def _has_ended(process: Process, within_s: float) -> bool:
    """Poll, because `wait` also waits for all holders of the pipes."""
    until_s = time.monotonic() + within_s
    while process.returncode is None and time.monotonic() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _signal_group(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
