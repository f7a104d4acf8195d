"""The configured MCP servers, and connections to URLs of clients."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, Sequence

from openai_cpu_server.contract.mcp import McpLimits, McpServer, McpServerOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.mcp_servers.connection import McpConnection
from openai_cpu_server.mcp_servers.web import checked_headers, checked_url

_NEEDED = ("mcp.client", "mcp.client.streamable_http", "httpx2")
_OF_URLS = "url"
"""Label of all URLs in counters."""


class ConfiguredServers:
    """`McpServers` as an async context manager, which closes all connections at its end."""

    def __init__(
        self, options: Mapping[str, McpServerOptions], limits: McpLimits, *, allowed_hosts: Sequence[str]
    ) -> None:
        """`allowed_hosts`: hosts that URLs of clients may name; `*.example.org` for subdomains, `*` for
        any. Raises StartupError without the extra `mcp`, which is imported here so that no request waits
        for the import."""
        try:
            for name in _NEEDED:
                importlib.import_module(name)
        except ImportError:
            raise StartupError(
                "[mcp] and --mcp-allow-url need: pip install 'openai-cpu-server[mcp]'"
            ) from None
        self._options = options
        self._limits = limits
        self._allowed_hosts = allowed_hosts
        self._servers: dict[str, McpConnection] = {}

    async def __aenter__(self) -> ConfiguredServers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    @property
    def limits(self) -> McpLimits:
        return self._limits

    @property
    def names(self) -> Sequence[str]:
        return list(self._options)

    def named(self, name: str) -> McpServer:
        """Return the server of this name. Raises KeyError."""
        if name not in self._servers:
            self._servers[name] = McpConnection(name, self._options[name], self._limits)
        return self._servers[name]

    def at_url(self, url: str, headers: Mapping[str, str]) -> McpServer:
        """Return the server at this URL. Raises InvalidRequest."""
        url = checked_url(url, self._allowed_hosts)
        options = McpServerOptions(url=url, headers=checked_headers(headers))
        return McpConnection(_OF_URLS, options, self._limits, is_public_only=True)
