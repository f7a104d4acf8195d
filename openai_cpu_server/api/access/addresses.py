"""The address that a request came from; proxies are believed only if the server was told to trust them."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Union

from starlette.datastructures import Headers
from starlette.types import Scope

Address = Union[IPv4Address, IPv6Address]
Network = Union[IPv4Network, IPv6Network]

_SITE_BITS = 64
"""One household or machine holds a whole /64 of IPv6, and may change its address within it."""
_PORT = re.compile(r"^(?:\[([^\]]*)\](?::\d+)?|([^:]*):\d+)$")
"""`[2001:db8::1]`, with or without a port, and `192.0.2.1:80`."""
_FOR = re.compile(r'\bfor="?([^";,\s]+)', re.IGNORECASE)
"""The `for=` of one hop in a `Forwarded` header."""


def client_address(scope: Scope, trusted: Collection[Network]) -> str | None:
    """The sender's address, of IPv6 its /64; None where there is none, as on a Unix socket.

    What headers say counts as far as trusted proxies have written it: from the right, up to the first hop
    that is not one of these. `X-Forwarded-For` goes before `Forwarded`.
    """
    client = scope.get("client")
    hop = _address(client[0]) if client else None
    if hop is None:
        return None
    hops = _forwarded(Headers(scope=scope))
    while hops and any(hop in network for network in trusted):
        before = _address(hops.pop())
        if before is None:
            break
        hop = before
    return _site(hop)


def _forwarded(headers: Headers) -> list[str]:
    """The addresses in the headers of proxies, the nearest last."""
    listed = ",".join(headers.getlist("x-forwarded-for"))
    if listed:
        return [hop.strip() for hop in listed.split(",")]
    return _FOR.findall(",".join(headers.getlist("forwarded")))


def _address(text: str) -> Address | None:
    """None for what is no address, such as `unknown`."""
    match = _PORT.match(text)
    try:
        address = ip_address((match[1] or match[2] or "") if match else text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _site(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    host_bits = 128 - _SITE_BITS
    return str(IPv6Network((int(address) >> host_bits << host_bits, _SITE_BITS)))
