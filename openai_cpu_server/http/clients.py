"""Callers of requests: keys, addresses, and the clients among which the scheduler takes turns."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Union

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope as AsgiScope

from openai_cpu_server.contract.caller import CALLER
from openai_cpu_server.contract.replica import key_identity
from openai_cpu_server.errors import Forbidden, Unauthorized
from openai_cpu_server.http.keys import STRANGER, VISITOR, Access, Identity, Key, KeyRing, Scope

_DIGEST_CHARS = 16
Address = Union[IPv4Address, IPv6Address]
Network = Union[IPv4Network, IPv6Network]

_SITE_BITS = 64
"""A household or machine has a whole /64 of IPv6, and may change its address within it."""
_PORT = re.compile(r"^(?:\[([^\]]*)\](?::\d+)?|([^:]*):\d+)$")
"""`[2001:db8::1]`, with or without a port, and `192.0.2.1:80`."""
_FOR = re.compile(r'\bfor="?([^";,\s]+)', re.IGNORECASE)


class ClientKind(enum.Enum):
    KEY = "key"
    """Holder of a named key, which a body cannot claim."""
    USER = "user"
    """Name in the body's `user`, which is not verified."""
    PEER = "peer"
    """Address, with the digest of any key that has no name or was not needed."""


class Client(msgspec.Struct, frozen=True):
    """Participant in the scheduler's fair turns. The label returns with the engine's live requests."""

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
        """Return the label shared by all clients of an address, or "" for keys and unknown addresses."""
        if identity.holder is not None or identity.address is None:
            return ""
        return cls(ClientKind.PEER, f"@{identity.address}").label

    @classmethod
    def of_label(cls, label: str) -> Client:
        kind, _, name = label.partition(":")
        return cls(ClientKind(kind) if kind else ClientKind.PEER, name)

    @property
    def label(self) -> str:
        return f"{self.kind.value}:{self.name}"

    def is_owned_by(self, identity: Identity) -> bool:
        """Return True if this identity may see and end its requests. A body's `user` owns nothing."""
        if identity.may(Scope.ADMIN):
            return True
        return self.kind is ClientKind.KEY and self.name == identity.holder

    def shown_to(self, identity: Identity) -> str:
        """Return the name to show. Only keys of administrators see addresses."""
        if self.kind is not ClientKind.PEER:
            return self.name
        digest, _, address = self.name.partition("@")
        is_administrator = identity.key is not None and identity.may(Scope.ADMIN)
        return "@".join(filter(None, (digest, address if is_administrator else "")))


def account_of(identity: Identity) -> str:
    """Return the key or address to blame for crashes of an engine, or "". A body's `user` is not trusted."""
    if identity.key is not None and identity.key.digest:
        return f"key:{identity.key.digest.hex()[:_DIGEST_CHARS]}"
    return f"address:{identity.address}" if identity.address else ""


def works_for(identity: Identity) -> None:
    """Make this task, and the threads that it starts, take turns as this client."""
    label = Client.of(identity, None).label
    CALLER.set((Client.group_of(identity) or label, label))


def key_of(label: str) -> str:
    client = Client.of_label(label)
    return client.name if client.kind is ClientKind.KEY else ""


def client_address(scope: AsgiScope, trusted: Collection[Network]) -> str | None:
    """Return the caller's address, or its /64 of IPv6, or None as on a Unix socket. Headers are believed
    from the right up to the first untrusted hop."""
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
    if isinstance(hop, IPv4Address):
        return str(hop)
    host_bits = 128 - _SITE_BITS
    return str(IPv6Network((int(hop) >> host_bits << host_bits, _SITE_BITS)))


def is_local(scope: AsgiScope) -> bool:
    """Return True if the peer and all hops in proxy headers are on this machine. The headers need no
    trust, because they can only make it False."""
    client = scope.get("client")
    if client is None:
        return True
    return all(is_loopback(hop) for hop in (client[0], *_forwarded(Headers(scope=scope))))


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _forwarded(headers: Headers) -> list[str]:
    listed = ",".join(headers.getlist("x-forwarded-for"))
    if listed:
        return [hop.strip() for hop in listed.split(",")]
    return _FOR.findall(",".join(headers.getlist("forwarded")))


def _address(text: str) -> Address | None:
    match = _PORT.match(text)
    try:
        address = ip_address((match[1] or match[2] or "") if match else text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


SUBPROTOCOL = "openai-chat-completions"
"""Browsers require the server to choose one of the subprotocols that they offer."""
_KEY_PROTOCOL = "openai-insecure-api-key."
"""Carries a key, as at OpenAI, because pages cannot set headers of a WebSocket."""
_ADMIN_IS_LOCAL = (
    "Without API keys they belong to the server's own machine: see --api-key, --api-keys and --open-admin."
)


class Credentials(msgspec.Struct, frozen=True):
    """Credentials of a request and the access that it needs. Keys may change before the check is repeated."""

    digest: str | None
    address: str | None
    access: Access
    is_visitor: bool
    """True for a non-administrator on a server without keys."""

    @classmethod
    def of(
        cls,
        scope: AsgiScope,
        access: Access,
        keys: KeyRing,
        trusted_proxies: Collection[Network],
        *,
        is_administrator: bool,
    ) -> Credentials:
        """`is_administrator`: has an effect only on a server without keys."""
        key = given_key(Headers(scope=scope)) or offered_key(scope.get("subprotocols", ()))
        return cls(
            key_identity(key),
            client_address(scope, trusted_proxies),
            access,
            is_visitor=keys.is_open and not is_administrator,
        )

    def identity(self, keys: KeyRing) -> Identity:
        """Return the identity by the current keys. Raises Unauthorized, Forbidden."""
        identity = Identity(self._key(keys), self.digest, self.address)
        required = self.access.scope
        if required is None or identity.may(required) or keys.admits_strangers(self.access):
            return identity
        raise Forbidden(required.value, _ADMIN_IS_LOCAL if self.is_visitor else "")

    def _key(self, keys: KeyRing) -> Key | None:
        if keys.is_open:
            return VISITOR if self.is_visitor else None
        if self.access.scope is None:
            return None
        key = None if self.digest is None else keys.with_digest(bytes.fromhex(self.digest))
        if key is None and keys.admits_strangers(self.access):
            key = STRANGER
        if key is None:
            raise Unauthorized("Missing or incorrect API key: send 'Authorization: Bearer KEY'.")
        return key


def given_key(headers: Mapping[str, str]) -> bytes | None:
    """Return the bearer token or `x-api-key`, or None. Clients without a key send an empty one."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else ""
    key = key or headers.get("x-api-key", "").strip()
    return key.encode("latin-1") or None  # as it came: headers are decoded so


def offered_key(subprotocols: Sequence[str]) -> bytes | None:
    keys = (name.removeprefix(_KEY_PROTOCOL) for name in subprotocols if name.startswith(_KEY_PROTOCOL))
    return next(keys, "").encode("latin-1") or None
