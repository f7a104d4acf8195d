"""Tools of MCP servers that one response may call: listed, filtered and named for the model."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from openai_cpu_server.api.generation.params import FunctionParam
from openai_cpu_server.api.generation.schema import MAX_TOOLS
from openai_cpu_server.api.responses.body import (
    ApprovalRule,
    McpServerTool,
    RequiredApproval,
    ResponsesBody,
    ToolFilter,
)
from openai_cpu_server.api.responses.items import IN_NAMESPACE, named_for_models
from openai_cpu_server.contract.mcp import (
    McpAnswer,
    McpLimits,
    McpServer,
    McpServers,
    McpTool,
    McpUnavailable,
)
from openai_cpu_server.errors import InvalidRequest, wrong
from openai_cpu_server.http.keys import Identity

_MOST_SERVERS = 16
_DIRECT = "direct"
_OWN = "how it is reached stands in this server's configuration"
_ELSEWHERE = "there are no services of OpenAI's here: name a server of the configuration, or a 'server_url'"


class OfferedTool(NamedTuple):
    label: str
    tool: McpTool
    server: McpServer
    needs_approval: bool


class ToolListing(NamedTuple):
    label: str
    tools: tuple[McpTool, ...]
    error: str | None = None


class McpTools:
    """`offered`: tools by the names that the model sees."""

    def __init__(
        self,
        offered: Mapping[str, OfferedTool],
        functions: Sequence[FunctionParam],
        listings: Sequence[ToolListing],
        own: Sequence[McpServer],
        limits: McpLimits,
    ) -> None:
        """`own`: servers of this request only, which are closed with it."""
        self.offered = offered
        self.functions = functions
        self.listings = listings
        self.limits = limits
        self._own = own

    def find(self, label: str, tool: str) -> OfferedTool | None:
        """`tool`: name that the server uses."""
        found = (one for one in self.offered.values() if (one.label, one.tool.name) == (label, tool))
        return next(found, None)

    async def call(self, one: OfferedTool, arguments: str, parsed: dict[str, object] | None) -> McpAnswer:
        if parsed is None:
            return McpAnswer(f"the arguments are no JSON object: {arguments[:200]}", True)
        return await one.server.call(one.tool.name, parsed)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._own))


class ToolboxOpener:
    def __init__(self, servers: McpServers) -> None:
        self._servers = servers

    async def open(self, body: ResponsesBody, identity: Identity) -> McpTools | None:
        """Return a toolbox, which the caller must close, or None without MCP tools. Raises InvalidRequest."""
        asked = [
            (f"tools[{index}]", tool)
            for index, tool in enumerate(body.tools or ())
            if isinstance(tool, McpServerTool)
        ]
        if not asked:
            return None
        _check_labels(asked)
        servers = [self._server(at, tool, identity) for at, tool in asked]
        own = [server for (_, tool), server in zip(asked, servers, strict=True) if tool.server_url]
        try:
            told = await asyncio.gather(*map(_told, servers))
            return self._filled(asked, servers, told, own, identity)
        except BaseException:
            await asyncio.shield(asyncio.gather(*(server.close() for server in own)))
            raise

    def _server(self, at: str, tool: McpServerTool, identity: Identity) -> McpServer:
        _check_form(at, tool)
        if tool.server_url is not None:
            return self._at_url(at, tool, tool.server_url, identity)
        names = [name for name in self._servers.names if identity.may_call(name)]
        if tool.server_label not in names:
            known = ", ".join(f"'{name}'" for name in names) or "none"
            message = f"There is no MCP server '{tool.server_label}' for you; there are: {known}."
            raise InvalidRequest(message, param=f"{at}.server_label", code="unknown_mcp_server")
        return self._servers.named(tool.server_label)

    def _at_url(self, at: str, tool: McpServerTool, url: str, identity: Identity) -> McpServer:
        param = f"{at}.server_url"
        headers = dict(tool.headers or {})
        if tool.authorization is not None:
            headers["Authorization"] = f"Bearer {tool.authorization}"
        try:
            server = self._servers.at_url(url, headers)
        except InvalidRequest as error:
            raise InvalidRequest(f"'{param}': {error}.", param=param, code="mcp_url_not_allowed") from None
        if not identity.may_call(_of_url(url)):
            message = f"Your key may use no MCP server at this URL ('{_of_url(url)}')."
            raise InvalidRequest(message, param=param, code="mcp_url_not_allowed")
        return server

    def _filled(
        self,
        asked: Sequence[tuple[str, McpServerTool]],
        servers: Sequence[McpServer],
        told: Sequence[Sequence[McpTool] | McpUnavailable],
        own: Sequence[McpServer],
        identity: Identity,
    ) -> McpTools:
        offered: dict[str, OfferedTool] = {}
        functions: list[FunctionParam] = []
        listings: list[ToolListing] = []
        for (at, wanted), server, found in zip(asked, servers, told, strict=True):
            if isinstance(found, McpUnavailable):
                listings.append(ToolListing(wanted.server_label, (), str(found)))
                continue
            scope = _of_url(wanted.server_url) if wanted.server_url else wanted.server_label
            tools = tuple(
                tool for tool in found if is_allowed(wanted, tool) and identity.may_call(scope, tool.name)
            )
            listings.append(ToolListing(wanted.server_label, tools))
            for tool in tools:
                name = _free_name(wanted.server_label, tool.name, offered)
                needs = needs_approval(wanted.require_approval, tool)
                offered[name] = OfferedTool(wanted.server_label, tool, server, needs)
                schema = {"type": "object", **tool.input_schema}  # which not all servers say
                functions.append(FunctionParam(name, at, at, tool.description, schema))
        if len(functions) > MAX_TOOLS:
            message = (
                f"The MCP servers have {len(functions)} tools, and {MAX_TOOLS} may be asked for: choose some."
            )
            raise wrong(message, f"{asked[0][0]}.allowed_tools")
        return McpTools(offered, functions, listings, own, self._servers.limits)


async def _told(server: McpServer) -> Sequence[McpTool] | McpUnavailable:
    try:
        return await server.tools()
    except McpUnavailable as error:
        return error


def _check_labels(asked: Sequence[tuple[str, McpServerTool]]) -> None:
    if len(asked) > _MOST_SERVERS:
        raise wrong(f"A response may use {_MOST_SERVERS} MCP servers.", "tools")
    seen: set[str] = set()
    for at, tool in asked:
        if tool.server_label in seen:
            message = f"There are several MCP servers of the label '{tool.server_label}'."
            raise wrong(message, f"{at}.server_label")
        seen.add(tool.server_label)


def _check_form(at: str, tool: McpServerTool) -> None:
    def refused(name: str, why: str) -> InvalidRequest:
        message = f"'{at}.{name}' is not supported: {why}."
        return InvalidRequest(message, param=f"{at}.{name}", code="unsupported_parameter")

    for name in ("connector_id", "tunnel_id"):
        if getattr(tool, name) is not None:
            raise refused(name, _ELSEWHERE)
    if tool.defer_loading:
        raise refused("defer_loading", "a model sees all tools from the beginning")
    if tool.allowed_callers is not None and _DIRECT not in tool.allowed_callers:
        raise refused("allowed_callers", "a model calls tools itself")
    if tool.server_url is None:
        for name in ("headers", "authorization"):
            if getattr(tool, name) is not None:
                raise refused(name, _OWN)


def _of_url(url: str) -> str:
    return f"url:{(urllib.parse.urlsplit(url).hostname or '').lower()}"


def _free_name(label: str, tool: str, taken: Collection[str]) -> str:
    """Names that models cannot write may become equal."""
    name = stem = label + IN_NAMESPACE + named_for_models(tool)
    number = 2
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    return name


def is_allowed(wanted: McpServerTool, tool: McpTool) -> bool:
    allowed = wanted.allowed_tools
    if isinstance(allowed, ToolFilter):
        return _matches(allowed, tool)
    return allowed is None or tool.name in allowed


def needs_approval(rule: RequiredApproval | None, tool: McpTool) -> bool:
    """Return True if both filters match, or neither of two. A filter for `always` alone frees other tools."""
    if not isinstance(rule, ApprovalRule):
        return rule != "never"
    if rule.always is not None and _matches(rule.always, tool):
        return True
    if rule.never is not None:
        return not _matches(rule.never, tool)
    return rule.always is None


def _matches(asked: ToolFilter, tool: McpTool) -> bool:
    if asked.tool_names is not None and tool.name not in asked.tool_names:
        return False
    return asked.read_only is None or asked.read_only == tool.is_read_only
