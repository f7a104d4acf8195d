from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.state import AppState, response_of
from openai_cpu_server.contract.mcp import McpServer, McpServerStatus, McpUnavailable
from openai_cpu_server.errors import McpServerNotFound
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import REQUESTS, Identity, Scope
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
    """`idle` (unused so far), `starting`, `ready` or `failed`."""
    error: str | None
    stderr_tail: tuple[str, ...] | None = msgspec.field(name="last_words")
    """Last lines of a failed program's standard error. Null without the scope `admin`, because they may hold
    secrets."""
    tools: tuple[McpToolCard, ...] | None
    """Allowed tools, or null until known."""


class McpServerList(msgspec.Struct, frozen=True):
    data: list[McpServerCard]
    object: str = "list"


_route = partial(ApiRoute, "GET", access=REQUESTS, tag="MCP servers", answer=McpServerCard)


class McpRoutes:
    def __init__(self, state: AppState) -> None:
        self._servers = state.mcp

    @_route("/v1/mcp", answer=McpServerList)
    async def list(self, request: Request) -> Response:
        """List the MCP servers and their known tools, without starting any server."""
        identity = context_of(request.scope).identity
        servers = self._of(identity).values()
        return json_response(McpServerList([_card(server.status(), identity) for server in servers]))

    @_route("/v1/mcp/{name}")
    async def one(self, request: Request) -> Response:
        """Start an MCP server if necessary, and list its tools."""
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
    return response_of(
        McpServerCard,
        status,
        stderr_tail=status.stderr_tail if identity.may(Scope.ADMIN) else None,
        tools=None
        if tools is None
        else tuple(
            response_of(McpToolCard, tool) for tool in tools if identity.may_call(status.name, tool.name)
        ),
    )


ROUTER = ApiRouter[AppState](McpRoutes)
