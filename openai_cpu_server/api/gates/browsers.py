"""What web pages may do here: by the name that they call this server by, and by where they come from.

A page can let its own name point at this machine (DNS rebinding): then the browser takes the server for the
page's own, and only the `Host` that it sends tells. Any other page sends an `Origin` that is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from openai_cpu_server.errors import OriginRefused

ANY = "*"
_HOST = re.compile(r"(?P<name>\[[0-9A-Za-z:.%]+\]|[0-9A-Za-z._-]+)(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_BEFORE_HOST = {"0.9", "1.0"}
_SECURE = {"https", "wss"}
_READING = {"GET", "HEAD", "OPTIONS"}
"""They change nothing, and what they answer a page of another origin cannot read."""


class Origin(NamedTuple):
    """Where a page comes from, as browsers compare it."""

    scheme: str
    host: str
    port: int | None
    """None: it has none, as an application's `app://name`."""

    @classmethod
    def of(cls, text: str) -> Origin | None:
        """None for what names no origin, such as `null`, which is many pages' and nobody's own."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            return None
        if not parts.scheme or not parts.hostname or parts.path not in ("", "/"):
            return None
        if parts.username is not None or parts.query or parts.fragment:
            return None
        return cls(parts.scheme, parts.hostname.rstrip("."), port or _DEFAULT_PORTS.get(parts.scheme))

    def __str__(self) -> str:
        """As browsers write it: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.port is None or self.port == _DEFAULT_PORTS.get(self.scheme)
        return f"{self.scheme}://{host}" if is_usual else f"{self.scheme}://{host}:{self.port}"


def canonical_origin(text: str) -> str:
    """As browsers write it, so that it can be compared; what is no origin (`*`, `null`) stays as it is."""
    origin = Origin.of(text)
    return text if origin is None else str(origin)


def host_name(host: str) -> str | None:
    """The name in a `Host` header, without its port; None for what is no name and no address."""
    match = _HOST.fullmatch(host)
    return match["name"].lower().rstrip(".") if match else None


def is_own_host(scope: Scope, allowed: Collection[str]) -> bool:
    """Whether the server was called by one of these names, or by an address.

    An address needs no permission: a page's own name is never one. A client that sends no Host at all, as
    was allowed before HTTP/1.1, is no browser.
    """
    if ANY in allowed:
        return True
    hosts = Headers(scope=scope).getlist("host")
    if not hosts:
        return scope.get("http_version") in _BEFORE_HOST
    name = host_name(hosts[0]) if len(hosts) == 1 else None
    return name is not None and (name in allowed or _is_address(name))


def check_origin(scope: Scope, allowed: Collection[str]) -> None:
    """Raises OriginRefused for a page that is neither this server's nor of an allowed origin, which are
    canonical.

    A browser sends some POSTs of any page without asking, and opens any WebSocket; all else that changes
    something needs a preflight.
    """
    headers = Headers(scope=scope)
    given = headers.get("origin")
    if given is None or (scope["type"] == "http" and scope["method"] in _READING):
        return
    if canonical_origin(given) in allowed or ANY in allowed:
        return
    origin = Origin.of(given)
    if origin is None or origin != _own_origin(scope, headers):
        raise OriginRefused(given)


def _own_origin(scope: Scope, headers: Headers) -> Origin | None:
    """Where a page of this server comes from, by the name that it was called by.

    A proxy in front may end HTTPS, and says so; a page cannot say it in its place.
    """
    scheme = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower() or scope["scheme"]
    host = headers.get("host", "")
    if host_name(host) is None:
        return None
    return Origin.of(f"{'https' if scheme in _SECURE else 'http'}://{host}")


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
