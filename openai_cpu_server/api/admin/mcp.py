"""`GET /v1/mcp`: MCP servers whose tools the caller's key may use."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.parts import AppState
from openai_cpu_server.contract.mcp import McpServer, McpServers, McpServerStatus, McpUnavailable
from openai_cpu_server.errors import McpServerNotFound
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import REQUESTS, Identity
from openai_cpu_server.http.routes import ApiRoute, ApiRouter


class McpToolCard(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None


class McpServerCard(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """`server_label` of a request's tool."""
    object: str = "mcp_server"
    transport: str
    state: str
    """`idle` (not asked yet), `starting`, `ready`, or `failed` (at the last attempt)."""
    error: str | None
    tools: tuple[McpToolCard, ...] | None
    """Tools that this key may use, or null until they are known."""


class McpServerList(msgspec.Struct, frozen=True):
    data: list[McpServerCard]
    object: str = "list"


class McpRoutes:
    def __init__(self, servers: McpServers | None) -> None:
        self._servers = servers

    async def list(self, request: Request) -> Response:
        """List the servers without starting any."""
        identity = context_of(request.scope).identity
        servers = self._of(identity).values()
        return json_response(McpServerList([_card(server.status(), identity) for server in servers]))

    async def one(self, request: Request) -> Response:
        """Show a server with its tools, which starts it."""
        name, identity = request.path_params["name"], context_of(request.scope).identity
        if (server := self._of(identity).get(name)) is None:
            raise McpServerNotFound(name)
        with contextlib.suppress(McpUnavailable):  # its state says so
            await server.tools()
        return json_response(_card(server.status(), identity))

    def _of(self, identity: Identity) -> dict[str, McpServer]:
        if (servers := self._servers) is None:
            return {}
        return {name: servers.named(name) for name in servers.names if identity.may_call(name)}


def _card(status: McpServerStatus, identity: Identity) -> McpServerCard:
    tools = status.tools
    return McpServerCard(
        name=status.name,
        transport=status.transport,
        state=status.state.value,
        error=status.error,
        tools=None
        if tools is None
        else tuple(
            msgspec.convert(tool, McpToolCard, from_attributes=True)
            for tool in tools
            if identity.may_call(status.name, tool.name)
        ),
    )


_row = partial(ApiRoute[McpRoutes], access=REQUESTS, tag="MCP servers")
_rows = (
    _row(
        "GET",
        "/v1/mcp",
        lambda at: at.list,
        summary="The MCP servers of this server, and their tools as far as they are known",
        answer=McpServerList,
    ),
    _row(
        "GET",
        "/v1/mcp/{name}",
        lambda at: at.one,
        summary="One of them: it is started, and asked for its tools",
        answer=McpServerCard,
    ),
)
ROOM = ApiRouter[AppState, McpRoutes](lambda parts: McpRoutes(parts.mcp), _rows)
