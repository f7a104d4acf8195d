"""The clients between whom the scheduler takes turns, and what is told of them: keys, users, addresses.

An address is the peer's; proxies are believed only if the server was told to trust them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Union

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope as AsgiScope

from openai_cpu_server.api.access.keys import Identity, Scope

_DIGEST_CHARS = 16
"""So many characters of a key's digest are enough to tell clients apart in a listing."""
Address = Union[IPv4Address, IPv6Address]
Network = Union[IPv4Network, IPv6Network]

_SITE_BITS = 64
"""One household or machine holds a whole /64 of IPv6, and may change its address within it."""
_PORT = re.compile(r"^(?:\[([^\]]*)\](?::\d+)?|([^:]*):\d+)$")
"""`[2001:db8::1]`, with or without a port, and `192.0.2.1:80`."""
_FOR = re.compile(r'\bfor="?([^";,\s]+)', re.IGNORECASE)
"""The `for=` of one hop in a `Forwarded` header."""


class ClientKind(enum.Enum):
    KEY = "key"
    """It is the holder of a key with a name. Nobody else can be one, whatever a body says."""
    USER = "user"
    """The body names it in `user`; anybody may write anything there."""
    PEER = "peer"
    """It names nobody: it goes by its address, and by the digest of a key that has no name or was not needed.
    """


class Client(msgspec.Struct, frozen=True):
    """One to whom the scheduler is fair. The label goes to the engine and comes back with live requests."""

    kind: ClientKind
    name: str

    @classmethod
    def of(cls, identity: Identity, user: str | None) -> Client:
        if identity.holder is not None:
            return cls(ClientKind.KEY, identity.holder)
        if user:
            return cls(ClientKind.USER, user)
        return cls(ClientKind.PEER, f"{(identity.digest or '')[:_DIGEST_CHARS]}@{identity.address or ''}")

    @classmethod
    def group_of(cls, identity: Identity) -> str:
        """All who come from one address have one turn, whatever they call themselves, and with whatever key
        that nobody needed. "": the holder of a key, or one of whose address nothing is known."""
        if identity.holder is not None or identity.address is None:
            return ""
        return cls(ClientKind.PEER, f"@{identity.address}").label

    @classmethod
    def of_label(cls, label: str) -> Client:
        """Reads a label. An empty one is a peer of whom nothing is known."""
        kind, _, name = label.partition(":")
        return cls(ClientKind(kind) if kind else ClientKind.PEER, name)

    @property
    def label(self) -> str:
        return f"{self.kind.value}:{self.name}"

    def is_owned_by(self, identity: Identity) -> bool:
        """Whether this identity may see and end its requests. A name in a body's `user` owns nothing."""
        if identity.may(Scope.ADMIN):
            return True
        return self.kind is ClientKind.KEY and self.name == identity.holder

    def shown_to(self, identity: Identity) -> str:
        """The name that this identity is told. Only keys of administrators are told addresses.

        On a server without keys everybody may see all requests, but nobody is told another's address.
        """
        if self.kind is not ClientKind.PEER:
            return self.name
        digest, _, address = self.name.partition("@")
        is_administrator = identity.key is not None and identity.may(Scope.ADMIN)
        return "@".join(filter(None, (digest, address if is_administrator else "")))


def account_of(identity: Identity) -> str:
    """Who answers for what an engine dies of: the key, else the address; "" where neither is known.

    A name in a body's `user` does not: anybody may write anything there.
    """
    if identity.key is not None and identity.key.digest:
        return f"key:{identity.key.digest.hex()[:_DIGEST_CHARS]}"
    return f"address:{identity.address}" if identity.address else ""


def key_of(label: str) -> str:
    """The name of the key of a client with this label; "" for one without a named key."""
    client = Client.of_label(label)
    return client.name if client.kind is ClientKind.KEY else ""


def client_address(scope: AsgiScope, trusted: Collection[Network]) -> str | None:
    """The sender's address, or its /64 of IPv6; None where there is none, as on a Unix socket.

    Headers are believed as far as trusted proxies have written them: from the right, up to the first hop that
    is no trusted proxy. `X-Forwarded-For` goes before `Forwarded`.
    """
    client = scope.get("client")
    hop = _address(client[0]) if client else None
    if hop is None:
        return None
    hops = _forwarded(Headers(scope=scope)) if _is_in(hop, trusted) else []
    while hops and _is_in(hop, trusted):
        before = _address(hops.pop())
        if before is None:
            break
        hop = before
    return _site(hop)


def is_local(scope: AsgiScope) -> bool:
    """Whether a request comes from this machine: its peer is on it, and no proxy's header names another.

    That header need not be believed: it can only take away. A Unix socket, which has no addresses, is local.
    """
    client = scope.get("client")
    if client is None:
        return True
    return all(is_loopback(hop) for hop in (client[0], *_forwarded(Headers(scope=scope))))


def is_loopback(host: str) -> bool:
    """False for names, `localhost` aside."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _forwarded(headers: Headers) -> list[str]:
    """The addresses in the headers of proxies, the nearest last."""
    listed = ",".join(headers.getlist("x-forwarded-for"))
    if listed:
        return [hop.strip() for hop in listed.split(",")]
    return _FOR.findall(",".join(headers.getlist("forwarded")))


def _is_in(address: Address, networks: Collection[Network]) -> bool:
    return any(address in network for network in networks)


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
