from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openai_cpu_server.api.generation.params import FunctionParam
from openai_cpu_server.api.generation.schema import MAX_TOOLS
from openai_cpu_server.api.responses import schema
from openai_cpu_server.api.responses.items import IN_NAMESPACE, named_for_models
from openai_cpu_server.contract.mcp import McpLimits, McpServer, McpServers, McpTool, McpUnavailable
from openai_cpu_server.errors import InvalidRequest, wrong
from openai_cpu_server.http.keys import Identity

_MOST_SERVERS = 16


class OfferedTool(NamedTuple):
    label: str
    tool: McpTool
    server: McpServer
    needs_approval: bool


class ToolListing(NamedTuple):
    label: str
    tools: tuple[McpTool, ...]
    error: str | None = None


@dataclass(frozen=True)
class McpTools:
    offered: Mapping[str, OfferedTool]
    """Keys are names for the model."""
    functions: Sequence[FunctionParam]
    listings: Sequence[ToolListing]
    own_servers: Sequence[McpServer]
    """Request's own, closed with it."""
    limits: McpLimits

    def find(self, label: str, tool: str) -> OfferedTool | None:
        """`tool`: the server's name of it."""
        found = (one for one in self.offered.values() if (one.label, one.tool.name) == (label, tool))
        return next(found, None)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self.own_servers))


async def open_tools(servers: McpServers, body: schema.ResponsesBody, identity: Identity) -> McpTools | None:
    """Return None without MCP tools. The caller must close the tools. Raises InvalidRequest."""
    wanted = [
        (f"tools[{index}]", tool)
        for index, tool in enumerate(body.tools or ())
        if isinstance(tool, schema.McpServerTool)
    ]
    if not wanted:
        return None
    _check_labels(wanted)
    chosen = [_server(servers, at, tool, identity) for at, tool in wanted]
    own = [server for (_, tool), server in zip(wanted, chosen, strict=True) if tool.server_url]
    try:
        lists = await asyncio.gather(*map(_listed, chosen))
        offered: dict[str, OfferedTool] = {}
        functions: list[FunctionParam] = []
        listings: list[ToolListing] = []
        for (at, tool), server, found in zip(wanted, chosen, lists, strict=True):
            label = tool.server_label
            if isinstance(found, McpUnavailable):
                if _must_call(body, label):
                    raise wrong(f"The MCP server '{label}' cannot be used: {found}.", at)
                listings.append(ToolListing(label, (), str(found)))
                continue
            scope = _of_url(tool.server_url) if tool.server_url else label
            allowed = tuple(
                one for one in found if is_allowed(tool, one) and identity.may_call(scope, one.name)
            )
            listings.append(ToolListing(label, allowed))
            for one in allowed:
                name = _free_name(label, one.name, offered)
                offered[name] = OfferedTool(label, one, server, needs_approval(tool.require_approval, one))
                parameters = {"type": "object", **one.input_schema}  # which not all servers say
                functions.append(FunctionParam(name, at, at, one.description, parameters))
        if len(functions) > MAX_TOOLS:
            message = (
                f"The MCP servers have {len(functions)} tools, and a request may have {MAX_TOOLS}: "
                "choose some with 'allowed_tools'."
            )
            raise wrong(message, f"{wanted[0][0]}.allowed_tools")
        return McpTools(offered, functions, listings, own, servers.limits)
    except BaseException:
        await asyncio.shield(asyncio.gather(*(server.close() for server in own)))
        raise


def _must_call(body: schema.ResponsesBody, label: str) -> bool:
    choice, tools = body.tool_choice, body.tools or ()
    if isinstance(choice, schema.NamedMcpTool):
        return choice.server_label == label
    return choice == "required" and all(isinstance(tool, schema.McpServerTool) for tool in tools)


async def _listed(server: McpServer) -> Sequence[McpTool] | McpUnavailable:
    try:
        return await server.tools()
    except McpUnavailable as error:
        return error


def _server(servers: McpServers, at: str, tool: schema.McpServerTool, identity: Identity) -> McpServer:
    _check_form(at, tool)
    if tool.server_url is not None:
        return _server_at_url(servers, f"{at}.server_url", tool, tool.server_url, identity)
    names = [name for name in servers.names if identity.may_call(name)]
    if tool.server_label not in names:
        choices = ", ".join(f"'{name}'" for name in names) or "none"
        message = f"No MCP server '{tool.server_label}' is available to this key; available are: {choices}."
        raise InvalidRequest(message, param=f"{at}.server_label", code="unknown_mcp_server")
    return servers.named(tool.server_label)


def _server_at_url(
    servers: McpServers, param: str, tool: schema.McpServerTool, url: str, identity: Identity
) -> McpServer:
    headers = dict(tool.headers or {})
    if tool.authorization is not None:
        headers["Authorization"] = f"Bearer {tool.authorization}"
    try:
        server = servers.at_url(url, headers)
    except InvalidRequest as error:
        raise InvalidRequest(f"'{param}': {error}.", param=param, code="mcp_url_not_allowed") from None
    if not identity.may_call(_of_url(url)):
        message = f"Your key may use no MCP server at this URL ('{_of_url(url)}')."
        raise InvalidRequest(message, param=param, code="mcp_url_not_allowed")
    return server


def _check_labels(wanted: Sequence[tuple[str, schema.McpServerTool]]) -> None:
    if len(wanted) > _MOST_SERVERS:
        raise wrong(f"A response may use {_MOST_SERVERS} MCP servers.", "tools")
    seen: set[str] = set()
    for at, tool in wanted:
        if tool.server_label in seen:
            message = f"Several MCP servers have the label '{tool.server_label}'."
            raise wrong(message, f"{at}.server_label")
        seen.add(tool.server_label)


_ELSEWHERE = (
    "the server has no services of OpenAI: name an MCP server of the configuration, or a 'server_url'"
)
_CONFIGURED = "the configuration of this server sets it"


def _check_form(at: str, tool: schema.McpServerTool) -> None:
    callers, is_configured = tool.allowed_callers, tool.server_url is None
    refusals = (
        ("connector_id", tool.connector_id is not None, _ELSEWHERE),
        ("tunnel_id", tool.tunnel_id is not None, _ELSEWHERE),
        ("defer_loading", bool(tool.defer_loading), "a model sees all tools from the beginning"),
        ("allowed_callers", callers is not None and "direct" not in callers, "a model calls tools itself"),
        ("headers", is_configured and tool.headers is not None, _CONFIGURED),
        ("authorization", is_configured and tool.authorization is not None, _CONFIGURED),
    )
    for name, is_refused, why in refusals:
        if is_refused:
            message = f"'{at}.{name}' is not supported: {why}."
            raise InvalidRequest(message, param=f"{at}.{name}", code="unsupported_parameter")


def _of_url(url: str) -> str:
    return f"url:{(urllib.parse.urlsplit(url).hostname or '').lower()}"


def _free_name(label: str, tool: str, taken: Collection[str]) -> str:
    """Names that models cannot write may become equal."""
    name = stem = label + IN_NAMESPACE + named_for_models(tool)
    number = 2
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    return name


def is_allowed(wanted: schema.McpServerTool, tool: McpTool) -> bool:
    allowed = wanted.allowed_tools
    if isinstance(allowed, schema.ToolFilter):
        return _matches(allowed, tool)
    return allowed is None or tool.name in allowed


def needs_approval(rule: schema.RequiredApproval | None, tool: McpTool) -> bool:
    """Match both filters, or neither of two. A filter for `always` alone frees other tools."""
    if not isinstance(rule, schema.ApprovalRule):
        return rule != "never"
    if rule.always is not None and _matches(rule.always, tool):
        return True
    if rule.never is not None:
        return not _matches(rule.never, tool)
    return rule.always is None


def _matches(wanted: schema.ToolFilter, tool: McpTool) -> bool:
    if wanted.tool_names is not None and tool.name not in wanted.tool_names:
        return False
    return wanted.read_only is None or wanted.read_only == tool.is_read_only
