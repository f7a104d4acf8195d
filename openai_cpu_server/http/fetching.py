"""Downloads from allowed domains only, never from private addresses."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import anyio

from openai_cpu_server import __version__
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.body import ThreadKind, thread_lane

_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK_BYTES = 64 * 1024
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL = tuple(map(ipaddress.IPv6Network, ("::/96", "64:ff9b:1::/48", "fec0::/10")))
"""Networks that Python takes for public: IPv4 in IPv6, local NAT64, site-local."""
_NETWORKS = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
"""Private networks, with those of carriers and VPNs."""


class Fetched(NamedTuple):
    url: str
    domains: tuple[str, ...]
    """`*.example.org` is everything below, `*` is any."""
    most_bytes: int
    too_large: str
    timeout_s: float
    """Total, redirects included."""
    hosts: tuple[str, ...] = ()
    """Hosts that may be private, as `HOST` or `HOST:PORT`; by default the scheme's port."""


async def fetch_url(source: Fetched) -> bytes:
    """Return the content. Raises InvalidRequest, with a clause as its message."""
    try:
        with anyio.fail_after(source.timeout_s):
            return await thread_lane(ThreadKind.FETCH).run(partial(_fetched, source), abandon_on_cancel=True)
    except TimeoutError:
        raise _late(source) from None


def _late(source: Fetched) -> InvalidRequest:
    return InvalidRequest(f"it was not received within {source.timeout_s:g} seconds")


def _fetched(source: Fetched) -> bytes:
    until_s = time.monotonic() + source.timeout_s
    url = source.url
    for _ in range(1 + _MOST_REDIRECTS):
        found = _once(source, url, until_s)
        if isinstance(found, bytes):
            return found
        url = urllib.parse.urljoin(url, found)
    raise InvalidRequest(f"it has more than {_MOST_REDIRECTS} redirects")


def _once(source: Fetched, url: str, until_s: float) -> bytes | str:
    parts = _checked(source, url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        is_secure = parts.scheme == "https"
        connection = _connected(host, port, until_s, is_secure=is_secure, is_own=_is_own(source, parts))
        with _cut_off(connection, until_s):
            path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
            agent = f"openai-cpu-server/{__version__}"
            connection.request("GET", path, headers={"User-Agent": agent, "Accept": "*/*"})
            return _content(source, connection, until_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, TimeoutError) or time.monotonic() >= until_s:
            raise _late(source) from None
        raise InvalidRequest(f"it cannot be fetched ({type(error).__name__})") from None


def _checked(source: Fetched, url: str) -> urllib.parse.SplitResult:
    if not source.domains and not source.hosts:
        raise InvalidRequest("the server fetches no URLs, because --allowed-media-domain names no domain")
    parts = web_url(url, "this is not a URL that can be fetched")
    if not _is_own(source, parts) and not is_below(parts, source.domains):
        raise InvalidRequest("its domain is not one that --allowed-media-domain names")
    return parts


def _is_own(source: Fetched, parts: urllib.parse.SplitResult) -> bool:
    usual = 443 if parts.scheme == "https" else 80
    for named in source.hosts:
        host = urllib.parse.urlsplit(f"//{named}")
        if host.hostname == parts.hostname and (host.port or usual) == (parts.port or usual):
            return True
    return False


def web_url(url: str, otherwise: str) -> urllib.parse.SplitResult:
    """Parse a URL of HTTP. Raises InvalidRequest, with the clause `otherwise` for other URLs."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest("this is not a URL") from None
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise InvalidRequest(otherwise)
    return parts


def is_below(url: urllib.parse.SplitResult, domains: Iterable[str]) -> bool:
    host, names = (url.hostname or "").lower(), [domain.lower() for domain in domains]
    return any(host.endswith(one[1:]) if one.startswith("*.") else one in ("*", host) for one in names)


def _connected(
    host: str, port: int, until_s: float, *, is_secure: bool, is_own: bool
) -> http.client.HTTPConnection:
    """Connect to the checked address, because the name may resolve differently afterwards."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = next((one for *_, (one, *_) in found), None)
    is_allowed = partial(is_near, host=host) if is_own else is_public
    if address is None or not all(is_allowed(str(one)) for *_, (one, *_) in found):
        raise InvalidRequest("its address is a private one")
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    connection = kind(host, port, timeout=_left(until_s))
    sock = socket.create_connection((str(address), port), timeout=_left(until_s))
    if is_secure:
        context = ssl.create_default_context()
        sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    connection.sock = sock
    return connection


@contextmanager
def _cut_off(connection: http.client.HTTPConnection, until_s: float) -> Iterator[None]:
    """Close at the deadline, because a trickle of bytes never triggers a socket's timeout."""
    sock = connection.sock  # the connection itself forgets it where the other side is going to close it

    def cut() -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # an SSLSocket's own would let go of its state

    timer = threading.Timer(max(until_s - time.monotonic(), 0), cut)
    timer.daemon = True
    timer.start()
    try:
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        yield
    finally:
        timer.cancel()
        connection.close()
        sock.close()


def is_near(address: str, host: str) -> bool:
    """Return True for a public or private address. Link-local ones are neither, because clouds serve secrets
    there."""
    if is_public(address):
        return True
    one = ipaddress.ip_address(address.partition("%")[0])
    one = getattr(one, "ipv4_mapped", None) or one
    if one.is_loopback:
        return host == "localhost" or host == str(one)
    is_network = any(one in network for network in _NETWORKS if network.version == one.version)
    return is_network and not (one.is_multicast or one.is_unspecified)


def is_public(address: str) -> bool:
    """Check an IPv4 address inside an IPv6 address, too."""
    one = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(one, ipaddress.IPv6Address):
        if any(one in network for network in _LOCAL):
            return False
        translated = ipaddress.IPv4Address(int(one) & 0xFFFFFFFF) if one in _NAT64 else None
        if (inner := one.ipv4_mapped or one.sixtofour or translated) is not None and not inner.is_global:
            return False
    return one.is_global and not one.is_multicast


def _content(source: Fetched, connection: http.client.HTTPConnection, until_s: float) -> bytes | str:
    response = connection.getresponse()
    if response.status in _REDIRECTS and (target := response.getheader("Location")):
        return target
    if response.status != 200:
        raise InvalidRequest(f"its server answered with status {response.status}")
    data = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        data += chunk
        if len(data) > source.most_bytes:
            raise InvalidRequest(f"it has more than {source.most_bytes} bytes", code=source.too_large)
    _left(until_s)  # what was cut off looks like an end
    return bytes(data)


def _left(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
