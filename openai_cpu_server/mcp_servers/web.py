"""MCP over HTTP, with limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from openai_cpu_server import __version__
from openai_cpu_server.contract.mcp import McpServerOptions
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.fetching import is_below, is_public, web_url
from openai_cpu_server.mcp_servers.escapes import PairedEscapes
from openai_cpu_server.mcp_servers.stdio import ServerTraffic, Streams, num_marks

if TYPE_CHECKING:
    import httpx2

_CONNECT_S = 10.0
_READ_S = 300.0
"""Timeout of a silent notification stream; calls have their own."""
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})


def checked_url(url: str, hosts: Sequence[str]) -> str:
    """Return the URL. Raises InvalidRequest with a clause for the client."""
    if not is_below(web_url(url, "this is not a URL of an MCP server"), hosts):
        raise InvalidRequest("its host is not one that --mcp-allow-url names")
    return url


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers. Raises as `checked_url`."""
    for name, value in headers.items():
        is_token = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not is_token or not value.isascii() or not value.isprintable() or name.lower() in _OWN_HEADERS:
            raise InvalidRequest(f"'{name[:64]}' is not a header that may be sent")
    return dict(headers)


@asynccontextmanager
async def http_streams(
    options: McpServerOptions, traffic: ServerTraffic, *, is_public_only: bool
) -> AsyncIterator[Streams]:
    """`is_public_only`: reject addresses that are not public."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(
        transport=_transport(traffic, is_public_only=is_public_only),
        headers={
            "user-agent": f"openai-cpu-server/{__version__}",
            **options.headers,
            "accept-encoding": "identity",
        },
        timeout=httpx2.Timeout(_CONNECT_S, read=_READ_S),
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(
            options.url, http_client=client, max_sse_event_size=traffic.most_bytes
        ) as streams,
    ):
        yield streams


def _transport(traffic: ServerTraffic, *, is_public_only: bool) -> httpx2.AsyncBaseTransport:
    import httpx2

    class BoundedBody(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            num_bytes, body_marks, escapes = 0, 0, PairedEscapes()
            async for part in self._stream:
                num_bytes += len(part)
                body_marks += num_marks(part)
                if num_bytes > traffic.most_bytes or not traffic.count(part, part.count(b"\n\n")):
                    raise httpx2.ReadError(traffic.flooded)
                if body_marks > traffic.most_marks:
                    raise httpx2.ReadError(traffic.dense)
                yield escapes.feed(part)
            yield escapes.rest()

        async def aclose(self) -> None:
            await self._stream.aclose()

    class BoundedTransport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if is_public_only:
                host = request.url.host
                address = await _public_address(host, request.url.port or 443)
                request.url = request.url.copy_with(host=address)
                request.extensions = {**request.extensions, "sni_hostname": host}
            response = await super().handle_async_request(request)
            if response.headers.get("content-encoding", "identity") != "identity":
                await response.aclose()
                raise httpx2.DecodingError("it answers in an encoding that was not requested")
            response.stream = BoundedBody(response.stream)
            return response

    return BoundedTransport(trust_env=False)


async def _public_address(host: str, port: int) -> str:
    """Check all of the host's addresses and return one, so that the name cannot resolve to another later."""
    import httpx2

    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpx2.ConnectError(f"the host '{host}' cannot be found ({type(error).__name__})") from None
    addresses = [str(one) for *_, (one, *_) in found]
    if not addresses or not all(map(is_public, addresses)):
        raise httpx2.ConnectError("its address is a private one")
    return addresses[0]
