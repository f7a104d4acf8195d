"""Clients over plain sockets: real HTTP with little CPU, because server and clients share cores."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.traffic import OURS, BenchRequest, Dialect, Failed, ScoredToken, Timings, Trace, Usage

_HOST = "127.0.0.1"
_PIECE_BYTES = 2**16
_DEADLINE_S = 1800
"""Longest wait for a server that hangs."""


class HttpFailed(Failed): ...


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        return self.text or (self.delta.content if self.delta else None) or ""


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: Usage | None = None
    timings: Timings | None = None
    error: dict[str, object] | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class _Head(msgspec.Struct, frozen=True):
    status: int
    is_chunked: bool


async def call(port: int, method: str, path: str, sent: bytes = b"") -> bytes:
    """Return the answer's body. Raises HttpFailed."""
    try:
        reader, writer = await _open(port, f"{method} {path}", sent, {})
        try:
            head = await _read_head(reader)
            body = b"".join([piece async for piece in _pieces(reader, head)])
        finally:
            writer.close()
    except (OSError, EOFError, ValueError) as error:
        raise HttpFailed(f"{method} {path}: {error}") from None
    _check(head, body)
    return body


async def _stream(port: int, trace: Trace, dialect: Dialect) -> None:
    request = trace.request
    headers = {"X-Priority": request.priority.value} if request.priority else {}
    body = msgspec.json.encode(dialect.body(request))
    reader, writer = await _open(port, f"POST {request.path}", body, headers)
    try:
        head = await _read_head(reader)
        if head.status != 200:
            _check(head, b"".join([piece async for piece in _pieces(reader, head)]))
        async for data in _events(reader, head):
            if data == b"[DONE]":
                trace.end = time.perf_counter()
                return
            _note(trace, data)
        raise HttpFailed("the stream ended without [DONE]")
    finally:
        writer.close()


def _note(trace: Trace, data: bytes) -> None:
    chunk = _decode_chunk(data)
    if chunk.error is not None:
        raise HttpFailed(str(chunk.error.get("message", chunk.error)))
    trace.usage = chunk.usage or trace.usage
    trace.timings = chunk.timings or trace.timings
    for choice in chunk.choices:
        if choice.content or choice.logprobs:
            trace.chunk_times.append(time.perf_counter())
        trace.text += choice.content
        trace.finish_reason = choice.finish_reason or trace.finish_reason
        if (scores := choice.logprobs) is not None:
            rows = zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True)
            trace.scored += [ScoredToken(text, logprob or 0.0, top or {}) for text, logprob, top in rows]


async def _open(
    port: int, request: str, body: bytes, headers: dict[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(_HOST, port, limit=2**22)
    lines = [f"{request} HTTP/1.1", f"Host: {_HOST}:{port}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return reader, writer


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    is_chunked = any(line.startswith(b"transfer-encoding:") and b"chunked" in line for line in lines)
    return _Head(int(first.split()[1]), is_chunked)


async def _pieces(reader: asyncio.StreamReader, head: _Head) -> AsyncIterator[bytes]:
    """A body without chunks ends with the connection."""
    if not head.is_chunked:
        while piece := await reader.read(_PIECE_BYTES):
            yield piece
        return
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _events(reader: asyncio.StreamReader, head: _Head) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in _pieces(reader, head):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _check(head: _Head, body: bytes) -> None:
    if head.status >= 400:
        raise HttpFailed(f"status {head.status}: {body[:300].decode(errors='replace')}")


class LoadFailed(Failed): ...


@dataclass
class Clients:
    """Clients of one server: closed loops (k clients that send again once answered) and open loops."""

    port: int
    dialect: Dialect = OURS
    traces: list[Trace] = field(default_factory=list)
    """All requests, also those that were cut off."""

    async def send(self, request: BenchRequest, arrival: float | None = None) -> Trace:
        """Write failures into the trace instead of raising."""
        trace = Trace(request, time.perf_counter() if arrival is None else arrival)
        self.traces.append(trace)
        try:
            await asyncio.wait_for(_stream(self.port, trace, self.dialect), _DEADLINE_S)
        except asyncio.TimeoutError:
            trace.error = f"not complete after {_DEADLINE_S} s"
        except (OSError, EOFError, ValueError, HttpFailed, msgspec.DecodeError) as error:
            trace.error = f"{type(error).__name__}: {error}"
        return trace

    async def closed_loop(self, requests: Iterable[BenchRequest], num_clients: int) -> None:
        """Stop each client whose request fails."""
        source = iter(requests)

        async def send_all() -> None:
            for request in source:
                if (await self.send(request)).error is not None:
                    return

        await asyncio.gather(*(send_all() for _ in range(num_clients)))

    @contextlib.asynccontextmanager
    async def endless(self, requests: Iterable[BenchRequest], num_clients: int) -> AsyncIterator[None]:
        """Run a closed loop until the block ends. Raises LoadFailed."""
        load = asyncio.create_task(self.closed_loop(requests, num_clients))
        try:
            yield
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        self.check()

    async def open_loop(self, requests: Iterable[BenchRequest], offsets: Sequence[float]) -> None:
        """Send requests at their offsets from now, and wait for all answers."""
        start = time.perf_counter()

        async def send_at(request: BenchRequest, arrival: float) -> None:
            await asyncio.sleep(max(0.0, arrival - time.perf_counter()))
            await self.send(request, arrival)

        pairs = zip(requests, offsets, strict=False)
        await asyncio.gather(*(send_at(request, start + offset) for request, offset in pairs))

    def check(self) -> None:
        """Check success and token counts, except of answers that end themselves. Raises LoadFailed."""
        for trace in self.traces:
            if trace.error is not None:
                raise LoadFailed(trace.error)
            is_fixed = not trace.request.ends_itself
            if is_fixed and trace.is_complete and trace.output_tokens != trace.request.max_tokens:
                raise LoadFailed(f"{trace.output_tokens} output tokens instead of {trace.ask.max_tokens}")


class Amount(msgspec.Struct, frozen=True):
    tokens: int
    bytes: int


class Pool(msgspec.Struct, frozen=True):
    """KV cells of running requests."""

    total: Amount
    used: Amount
    shared: Amount


class Cache(msgspec.Struct, frozen=True):
    used: Amount


class Savings(msgspec.Struct, frozen=True):
    running_requests: int


class CacheStats(msgspec.Struct, frozen=True):
    """Figures, or None before the engine's first step."""

    pool: Pool | None
    cache: Cache | None
    savings: Savings | None


async def cache_stats(port: int) -> CacheStats:
    """Return the figures. Raises HttpFailed."""
    return msgspec.json.decode(await call(port, "GET", "/v1/cache/stats"), type=CacheStats)


async def clear_cache(port: int) -> None:
    """Drop all unpinned prompts with the engine's next step. Raises HttpFailed."""
    await call(port, "DELETE", "/v1/cache")
