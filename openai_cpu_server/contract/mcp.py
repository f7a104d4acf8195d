"""MCP servers as the API knows them: what they offer, what they are asked, and within which bounds."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

JsonFields = dict[str, Any]


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    input_schema: JsonFields
    annotations: JsonFields | None = None

    @property
    def is_read_only(self) -> bool:
        """As its server says, which nobody checks."""
        return bool(self.annotations and self.annotations.get("readOnlyHint") is True)


class McpAnswer(msgspec.Struct, frozen=True):
    """What came of one call of a tool."""

    text: str
    """The result; of a call that failed: why."""
    is_error: bool = False
    duration_ms: float | None = None
    """None: no call was made."""


class McpServerState(enum.Enum):
    IDLE = "idle"
    """Nobody has asked it for anything yet, or it has ended by itself."""
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    """It could not be reached last time; who asks next tries again."""


class McpServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    transport: str
    """`stdio` or `http`."""
    state: McpServerState
    error: str | None = None
    tools: tuple[McpTool, ...] | None = None
    """None: they are not known yet."""


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int = 10
    """Generations of one response after which its model may call no tool any more."""
    seconds: float = 60.0
    """For one call, or for a list of tools; starting the server is a part of it."""
    result_bytes: int = 64 * 1024
    """The text of one result."""


class McpServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One server of the configuration: a command, or a URL."""

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    """Beside what all children get."""
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    tools: frozenset[str] | None = None
    """Only these are offered; None: all."""


class McpUnavailable(Exception):
    """The server does not tell its tools; the message is a clause."""


class McpServer(Protocol):
    @property
    def name(self) -> str:
        """For counters: of few values."""
        ...

    def status(self) -> McpServerStatus: ...

    async def tools(self) -> Sequence[McpTool]:
        """Starts it if need be. Raises McpUnavailable."""
        ...

    async def call(self, tool: str, arguments: JsonFields) -> McpAnswer:
        """Whatever goes wrong is an answer. Who cancels this ends the call at the server, too."""
        ...

    async def close(self) -> None: ...


class McpServers(Protocol):
    @property
    def limits(self) -> McpLimits: ...

    @property
    def names(self) -> Sequence[str]:
        """Of those in the configuration."""
        ...

    def named(self, name: str) -> McpServer:
        """Raises KeyError."""
        ...

    def at_url(self, url: str, headers: Mapping[str, str]) -> McpServer:
        """A server for one request, which closes it. Raises InvalidRequest, with a clause, for a URL that
        may not be asked."""
        ...


class McpObserver(Protocol):
    def mcp_called(self, server: str, *, failed: bool, seconds: float) -> None: ...

    def mcp_rounds(self, rounds: int) -> None:
        """A response with such tools has ended after so many generations."""
        ...
