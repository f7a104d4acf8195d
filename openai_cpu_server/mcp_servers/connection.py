"""Shared connections to MCP servers, each in its own task, which reconnect after a loss."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from openai_cpu_server import __version__
from openai_cpu_server.contract.mcp import (
    JsonFields,
    McpAnswer,
    McpLimits,
    McpServer,
    McpServerOptions,
    McpServerState,
    McpServerStatus,
    McpTool,
    McpUnavailable,
)
from openai_cpu_server.errors import MissingExtra
from openai_cpu_server.mcp_servers.stdio import UNREADABLE, ServerTraffic, Streams, stdio_streams
from openai_cpu_server.mcp_servers.web import checked_headers, checked_url, http_streams

if TYPE_CHECKING:
    from mcp.client import Client, IncomingMessage
    from mcp.client.session import MessageHandlerFnT
    from mcp_types import CallToolResult

logger = logging.getLogger(__name__)

_AT_ONCE = 16
"""Concurrent calls of one server. Waiting counts towards a call's timeout."""
_MOST_PAGES, _MOST_TOOLS = 32, 512
_PICTURE_TYPE = re.compile(r"image/[a-z0-9.+-]{1,40}")
_LEAST_MESSAGE_BYTES = 4 * 1024 * 1024
"""Lists of tools are long, and results may carry pictures."""
_USUAL_MARKS = 50_000
"""Quotes, commas and brackets beside those of a result's text, as many as in 400 tools with 8 parameters
each."""
_LONGEST_PAUSE_S = 60.0
"""The pause is 0 after the first loss, then 1 s, then doubles."""
_CLOSE_S = 4.0
_FRESH_S = 300.0
"""Age at which tools are listed again; not every server announces changes."""
_ALIVE_S = 5.0
"""Timeout of the liveness check after a call's timeout; without a reply the connection is lost."""
_SHOWN_CHARS = 500
_UNPARSED = ("Failed to parse JSON response: ", "Failed to parse SSE message: ")
"""Beginnings of `mcp`'s errors over HTTP, whose rest is pydantic's."""
_CLOSED = -32000
"""`mcp`'s error code for a connection lost during a request."""

Transport = Callable[[McpServerOptions, ServerTraffic], AbstractAsyncContextManager[Streams]]


class McpConnection:
    """`McpServer` whose methods belong to one event loop's thread."""

    def __init__(
        self, name: str, options: McpServerOptions, limits: McpLimits, *, is_public_only: bool = False
    ) -> None:
        """`is_public_only`: a client named the URL."""
        self.name = name
        self._options = options
        self._limits = limits
        self._transport: Transport = (
            stdio_streams if options.command else partial(http_streams, is_public_only=is_public_only)
        )
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._link: _Link | None = None
        self._traffic = self._new_traffic()
        self._left: set[asyncio.Task[None]] = set()
        """Tasks of lost connections until they end."""
        self._tools: tuple[McpTool, ...] | None = None
        self._listed_s = 0.0
        self._listing: asyncio.Task[tuple[McpTool, ...]] | None = None
        self._error: str | None = None
        self._num_losses = 0
        """Losses since the last reply."""
        self._retry_at_s = 0.0
        self._alive_check: asyncio.Task[None] | None = None

    def status(self) -> McpServerStatus:
        state = McpServerState.IDLE if self._error is None else McpServerState.FAILED
        if self._link is not None and not self._link.is_lost:
            state = McpServerState.READY if self._link.is_ready else McpServerState.STARTING
        return McpServerStatus(
            name=self.name,
            transport="stdio" if self._options.command else "http",
            state=state,
            error=self._error,
            stderr_tail=tuple(self._traffic.stderr_tail) if state is McpServerState.FAILED else (),
            tools=self._tools,
        )

    async def tools(self) -> Sequence[McpTool]:
        """Return tools, listed again after some minutes or an announced change."""
        is_fresh = time.monotonic() - self._listed_s < _FRESH_S
        if self._link is not None and not self._link.is_lost and self._tools is not None and is_fresh:
            return self._tools
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(self._listed())
            # All waiting callers may have left, so the exception is retrieved here.
            self._listing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._listing)

    async def call(self, tool: str, arguments: JsonFields) -> McpAnswer:
        try:
            with anyio.fail_after(self._limits.seconds):
                async with self._places:
                    return await self._called(tool, arguments)
        except TimeoutError:
            link, is_checking = self._link, self._alive_check is not None and not self._alive_check.done()
            if link is not None and link.is_ready and not is_checking:
                self._alive_check = asyncio.create_task(self._check_alive(link))
            return McpAnswer(f"the tool has not answered within {self._limits.seconds:g} seconds", True)
        except McpUnavailable as error:
            return McpAnswer(f"the MCP server is not available: {error}", True)

    async def close(self) -> None:
        link, self._link = self._link, None
        for task in (self._listing, self._alive_check):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if link is not None:
            self._leave(link)
        if self._left:
            _, late = await asyncio.wait(self._left, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)

    # -- inside -------------------------------------------------------------------------------------------

    async def _listed(self) -> tuple[McpTool, ...]:
        try:
            with anyio.fail_after(self._limits.seconds):
                link = await self._linked()
                link.traffic.reset_counts()
                found = [tool async for tool in _all_tools(link.client)]
        except TimeoutError:
            self._lose(f"it has not listed its tools within {self._limits.seconds:g} seconds")
            raise McpUnavailable(self._error) from None
        except McpUnavailable:
            raise
        except Exception as error:
            self._lose(self._traffic.cause or _reason(error))
            raise McpUnavailable(self._error) from None
        offered = self._options.tools
        self._listed_s = time.monotonic()
        self._tools = tuple(tool for tool in found if offered is None or tool.name in offered)
        self._error, self._num_losses = None, 0
        return self._tools

    async def _called(self, tool: str, arguments: JsonFields) -> McpAnswer:
        link = await self._linked()
        link.traffic.reset_counts()
        try:
            result = await _result(link.client, tool, arguments)
        except Exception as error:
            why = link.traffic.cause or _reason(error)
            if _is_lost(error) or link.is_lost:
                self._lose(why)
            return McpAnswer(why, True)
        self._error, self._num_losses = None, 0
        pictures = [*filter(None, map(_picture, result.content))]
        text = "\n".join(_words(part) for part in result.content if not _picture(part))
        if not result.content and result.structured_content is not None:
            text = msgspec.json.encode(result.structured_content).decode()
        if len(text.encode(errors="replace")) > self._limits.result_bytes:
            return McpAnswer(f"the result has more than {self._limits.result_bytes} bytes", True)
        return McpAnswer("\n".join(filter(None, (text, *pictures))), bool(result.is_error))

    async def _linked(self) -> _Link:
        if self._link is not None and self._link.is_lost:
            self._lose(self._link.traffic.cause or "the connection was lost")
        if self._link is None:
            wait_s = self._retry_at_s - time.monotonic()
            if wait_s > 0:
                raise McpUnavailable(f"{self._error}; the next attempt is in {wait_s:.0f} seconds")
            self._traffic = self._new_traffic()
            self._link = _Link(self._transport, self._options, self._traffic, self._handle)
        link = self._link
        try:
            await link.ready()
        except McpUnavailable as error:
            if self._link is link:
                self._lose(str(error))
            raise
        return link

    def _new_traffic(self) -> ServerTraffic:
        most_text = self._limits.result_bytes
        return ServerTraffic(
            self.name, max(_LEAST_MESSAGE_BYTES, 4 * most_text), most_marks=_USUAL_MARKS + most_text
        )

    async def _check_alive(self, link: _Link) -> None:
        try:
            with anyio.fail_after(min(_ALIVE_S, self._limits.seconds)):
                await link.client.list_tools()
        except Exception:
            if self._link is link:
                self._lose("it no longer answers")

    def _lose(self, why: str) -> None:
        link, self._link, self._tools = self._link, None, None
        self._error = why[:_SHOWN_CHARS]
        self._num_losses += 1
        pause_s = 2.0 ** min(self._num_losses - 2, 6) if self._num_losses > 1 else 0.0
        self._retry_at_s = time.monotonic() + min(pause_s, _LONGEST_PAUSE_S)
        logger.warning("MCP server %s: %s", self.name, self._error)
        if link is not None:
            link.traffic.cause = link.traffic.cause or why
            self._leave(link)

    def _leave(self, link: _Link) -> None:
        self._left.add(link.task)
        link.task.add_done_callback(self._left.discard)
        link.leave()

    async def _handle(self, message: IncomingMessage) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._tools = None


class _Link:
    """Connection whose contexts one task enters and leaves."""

    def __init__(
        self,
        transport: Transport,
        options: McpServerOptions,
        traffic: ServerTraffic,
        message_handler: MessageHandlerFnT,
    ) -> None:
        self.traffic = traffic
        self._connecting = transport(options, traffic)
        self._handle = message_handler
        self._client: Client | None = None
        self._is_up = asyncio.Event()
        self._failure: str | None = None
        self.task = asyncio.create_task(self._run())

    @property
    def client(self) -> Client:
        assert self._client is not None, "it is ready"
        return self._client

    @property
    def is_ready(self) -> bool:
        return self._client is not None

    @property
    def is_lost(self) -> bool:
        return self.task.done() or self.traffic.ended.is_set()

    async def ready(self) -> None:
        await self._is_up.wait()
        if self._failure is not None:
            raise McpUnavailable(self._failure)

    def leave(self) -> None:
        self.traffic.ended.set()
        if self._client is None:
            self.task.cancel()

    async def _run(self) -> None:
        from mcp.client import Client
        from mcp_types import Implementation

        info = Implementation(name="openai-cpu-server", version=__version__)
        client = Client(self._connecting, cache=None, message_handler=self._handle, client_info=info)
        try:
            async with client:
                self._client = client
                self._is_up.set()
                await self.traffic.ended.wait()
        except Exception as error:
            self._failure = self.traffic.cause or _reason(error)
        finally:
            self._failure = self._failure or self.traffic.cause or "the connection was closed"
            self._is_up.set()


async def _all_tools(client: Client) -> AsyncIterator[McpTool]:
    cursor, num_tools = None, 0
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            num_tools += 1
            if num_tools > _MOST_TOOLS:
                raise McpUnavailable(f"it has more than {_MOST_TOOLS} tools")
            annotations = tool.annotations and tool.annotations.model_dump(by_alias=True, exclude_none=True)
            yield McpTool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema,
                annotations=annotations or None,
            )
        cursor = page.next_cursor
        if cursor is None:
            return
    raise McpUnavailable(f"its list of tools has more than {_MOST_PAGES} pages")


async def _result(client: Client, tool: str, arguments: JsonFields) -> CallToolResult:
    """Use the session, because `Client.call_tool` validates results by the remote server's schema."""
    from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

    request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
    return await client.session.send_request(request, CallToolResult)


def _picture(part: Any) -> str:
    """Return Markdown that clients show and `SHOWN_PICTURE` finds for models that see."""
    source = getattr(part, "resource", part)
    data = getattr(source, "blob" if part.type == "resource" else "data", None)
    kind = str(getattr(source, "mime_type", ""))
    return f"![picture](data:{kind};base64,{data})" if data and _PICTURE_TYPE.fullmatch(kind) else ""


def _words(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type == "resource":
        text = getattr(part.resource, "text", None)
        if text is not None:
            return str(text)
        return f"[{part.resource.mime_type or 'data'}: {part.resource.uri}]"
    if part.type == "resource_link":
        return f"[{part.name}: {part.uri}]"
    return f"[{part.type}: {getattr(part, 'mime_type', 'unknown')}, which cannot be shown]"


def _is_lost(error: Exception) -> bool:
    from mcp.shared.exceptions import MCPError

    if isinstance(error, MCPError):
        return error.error.code == _CLOSED or error.error.message == "Session terminated"
    return not isinstance(error, ValueError)  # pydantic's, for an invalid reply


def _reason(error: BaseException) -> str:
    """Return one line, of a group's first error."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    if isinstance(error, FileNotFoundError):
        return "there is no such command"
    name = type(error).__name__
    if name == "ValidationError":
        return "its answer is not a result"
    text = " ".join(str(error).split())
    if text.startswith(_UNPARSED):
        return UNREADABLE
    return "".join(char if char.isprintable() else "?" for char in text[:_SHOWN_CHARS]) or name


_NEEDED = ("mcp.client", "mcp.client.streamable_http", "httpx2")
_OF_URLS = "url"


class ConfiguredServers:
    """MCP servers of the settings; closes all connections at its end."""

    def __init__(
        self, options: Mapping[str, McpServerOptions], limits: McpLimits, *, allowed_hosts: Sequence[str]
    ) -> None:
        """`allowed_hosts`: for clients' URLs; `*.example.org` for subdomains, `*` for any. Raises
        StartupError without the extra `mcp`, imported here so that no request waits for it."""
        try:
            for name in _NEEDED:
                importlib.import_module(name)
        except ImportError:
            raise MissingExtra("[mcp] and --mcp-allow-url need", "mcp") from None
        self._options = options
        self.limits = limits
        self._allowed_hosts = allowed_hosts
        self._servers: dict[str, McpConnection] = {}

    async def __aenter__(self) -> ConfiguredServers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    @property
    def names(self) -> Sequence[str]:
        return list(self._options)

    def named(self, name: str) -> McpServer:
        if name not in self._servers:
            self._servers[name] = McpConnection(name, self._options[name], self.limits)
        return self._servers[name]

    def at_url(self, url: str, headers: Mapping[str, str]) -> McpServer:
        url = checked_url(url, self._allowed_hosts)
        options = McpServerOptions(url=url, headers=checked_headers(headers))
        return McpConnection(_OF_URLS, options, self.limits, is_public_only=True)
