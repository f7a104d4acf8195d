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
        """True by the server's own account, which is not verified."""
        return bool(self.annotations and self.annotations.get("readOnlyHint") is True)


class McpAnswer(msgspec.Struct, frozen=True):
    text: str
    is_error: bool = False
    duration_ms: float | None = None
    """Unset without a call."""


class McpServerState(enum.Enum):
    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class McpServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    transport: str
    state: McpServerState
    error: str | None = None
    stderr_tail: tuple[str, ...] = ()
    """Last lines of standard error, which may hold secrets."""
    tools: tuple[McpTool, ...] | None = None
    """Unset until the tools have been listed."""


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int = 10
    """Generations of one response."""
    seconds: float = 60.0
    """Timeout of a call or a listing, with the server's start."""
    result_bytes: int = 64 * 1024


class McpServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    """Variables beside those of all child processes."""
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    tools: frozenset[str] | None = None
    """Names to offer, or None for all."""


class McpUnavailable(Exception):
    """The message is a clause."""


class McpServer(Protocol):
    @property
    def name(self) -> str:
        """Label for counters, with few distinct values."""

    def status(self) -> McpServerStatus: ...

    async def tools(self) -> Sequence[McpTool]:
        """List the tools, starting the server if necessary. Raises McpUnavailable."""

    async def call(self, tool: str, arguments: JsonFields) -> McpAnswer:
        """Return failures, too. Cancelling also cancels the call at the server."""

    async def close(self) -> None: ...


class McpServers(Protocol):
    @property
    def limits(self) -> McpLimits: ...

    @property
    def names(self) -> Sequence[str]: ...

    def named(self, name: str) -> McpServer: ...

    def at_url(self, url: str, headers: Mapping[str, str]) -> McpServer:
        """Return a server for one request. Raises InvalidRequest for a forbidden URL."""


class McpObserver(Protocol):
    def mcp_called(self, server: str, *, failed: bool, seconds: float) -> None: ...

    def mcp_rounds(self, rounds: int) -> None: ...
