from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Union

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope as AsgiScope

from openai_cpu_server.contract.caller import CALLER
from openai_cpu_server.contract.replica import key_identity
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import Forbidden, StartupError, Unauthorized
from openai_cpu_server.jobs.records import NO_LIMITS, StorageLimits


class Scope(enum.Enum):
    INFERENCE = "inference"
    """Models, generation, tokens, and the client's own requests."""
    METRICS = "metrics"
    ADMIN = "admin"
    """Cache, adapters, loading, and all requests."""


ALL_SCOPES = frozenset(Scope)
ALL_MCP = frozenset({"*", "url:*"})

_Amount = Annotated[int, msgspec.Meta(ge=1)]


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key, or None for no limit."""

    requests_per_minute: _Amount | None = None
    tokens_per_minute: _Amount | None = None
    tokens_per_day: _Amount | None = None
    concurrent: _Amount | None = None
    """Calls at once in this process."""
    batch_tokens_per_day: _Amount | None = None
    """Counts batch rows, which no other limit does."""
    stored_mb: _Amount | None = None
    """Files, results of batches, responses and conversations."""
    files: _Amount | None = None

    @property
    def storage(self) -> StorageLimits:
        max_bytes = None if self.stored_mb is None else self.stored_mb * 1024 * 1024
        return StorageLimits(max_bytes=max_bytes, max_files=self.files)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Holder, to whom the scheduler is fair, or "" for `--api-key`, which many may share."""
    digest: bytes
    """SHA-256."""
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE})
    priority: Priority | None = None
    """Default of requests. None for the server's."""
    max_priority: Priority = Priority.INTERACTIVE
    models: frozenset[str] | None = None
    """Allowed names, or None for all."""
    mcp: frozenset[str] = frozenset()
    """Allowed MCP servers: `NAME`, `NAME/TOOL`, `*`; `url:HOST` and `url:*` for servers named by URL."""
    allowance: Allowance = Allowance()


class Identity(msgspec.Struct, frozen=True):
    key: Key | None
    """Absent (None) on a server without keys, which allows everything."""
    digest: str | None
    """SHA-256 in hex of the sent key, even if unneeded."""
    address: str | None = None

    @property
    def holder(self) -> str | None:
        return self.key.name or None if self.key else None

    @property
    def storage(self) -> StorageLimits:
        return self.key.allowance.storage if self.key else NO_LIMITS

    @property
    def is_stranger(self) -> bool:
        """True without a key on a server with keys, for routes that need none."""
        return self.key is STRANGER

    @property
    def allowed_models(self) -> frozenset[str] | None:
        return self.key.models if self.key else None

    def may_call(self, server: str, tool: str | None = None) -> bool:
        """`server`: name, or `url:HOST`. `tool`: None for any."""
        if self.key is None:
            return True
        listed = self.key.mcp
        if server in listed or ("url:*" if server.startswith("url:") else "*") in listed:
            return True
        if tool is None:
            return any(one.startswith(f"{server}/") for one in listed)
        return f"{server}/{tool}" in listed

    def may(self, scope: Scope) -> bool:
        return self.key is None or scope in self.key.scopes


ANYBODY = Identity(key=None, digest=None)
STRANGER = Key(name="", digest=b"", scopes=frozenset())
"""Missing key on a server with keys, which allows nothing."""
VISITOR = Key(name="", digest=b"", scopes=frozenset({Scope.INFERENCE, Scope.METRICS}))
"""Remote caller on a server without keys, whose administrators are local."""


class Metering(enum.Enum):
    NONE = "none"
    REQUESTS = "requests"
    """Counts per minute alone, because it waits for a call in `concurrent`."""
    WORK = "work"
    """Counts in `concurrent` too."""
    CALLS = "calls"
    """Counts tokens too, because it generates or embeds."""


class Callers(enum.Enum):
    CLIENTS = "clients"
    PROBES = "probes"
    """Health checks, unlogged and answered even beyond the limit of connections."""
    GATEWAYS = "gateways"
    """Frequent readers of several servers, unlogged and keyless under `--open-to-gateways`."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    scope: Scope | None
    """Unset (None) if the route needs no key."""
    metering: Metering = Metering.NONE
    callers: Callers = Callers.CLIENTS
    is_upload: bool = False

    @property
    def is_quiet(self) -> bool:
        return self.callers is not Callers.CLIENTS


OPEN = Access(scope=None)
"""Routes that reveal nothing secret."""
INFERENCE = Access(scope=Scope.INFERENCE)
REQUESTS = Access(scope=Scope.INFERENCE, metering=Metering.REQUESTS)
WORK = Access(scope=Scope.INFERENCE, metering=Metering.WORK)
CALLS = Access(scope=Scope.INFERENCE, metering=Metering.CALLS)
UPLOADS = Access(scope=Scope.INFERENCE, metering=Metering.WORK, is_upload=True)
PROBES = Access(scope=None, callers=Callers.PROBES)
METRICS = Access(scope=Scope.METRICS)
GATEWAYS = Access(scope=Scope.INFERENCE, callers=Callers.GATEWAYS)
GATEWAY_METRICS = Access(scope=Scope.METRICS, callers=Callers.GATEWAYS)
ADMIN = Access(scope=Scope.ADMIN)


def unmetered(access: Access) -> Access:
    return msgspec.structs.replace(access, metering=Metering.NONE)


Label = Literal["interactive", "batch"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class _Entry(Allowance, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")]
    priority: Label | None = None
    max_priority: Label = "interactive"
    models: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    mcp: frozenset[str] = frozenset()
    scopes: tuple[Scope, ...] = (Scope.INFERENCE,)
    admin: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: Annotated[dict[str, _Entry], msgspec.Meta(min_length=1)]


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read a file. Raises StartupError, which never repeats its values."""
    try:
        entries = msgspec.toml.decode(path.read_bytes(), type=_File).keys
        _check(entries)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        why = error.strerror or "unreadable" if isinstance(error, OSError) else str(error).replace("\n", " ")
        raise StartupError(f"cannot read the keys of {path}: {why}") from None
    return tuple(
        Key(
            name=name,
            digest=bytes.fromhex(entry.sha256),
            scopes=ALL_SCOPES if entry.admin else frozenset(entry.scopes),
            priority=_priority(entry.priority) if entry.priority else None,
            max_priority=_priority(entry.max_priority),
            models=frozenset(entry.models) if entry.models is not None else None,
            mcp=entry.mcp,
            allowance=msgspec.convert(entry, Allowance, from_attributes=True),
        )
        for name, entry in entries.items()
    )


def _check(entries: dict[str, _Entry]) -> None:
    for name, entry in entries.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:64]!r} is not a valid key name")
        if entry.priority is not None and _priority(entry.priority) < _priority(entry.max_priority):
            raise ValueError(f"the priority of {name!r} exceeds its max_priority")
    if len({entry.sha256.lower() for entry in entries.values()}) < len(entries):
        raise ValueError("two keys have the same sha256")


def _priority(label: Label) -> Priority:
    return Priority[label.upper()]


class NewKey(NamedTuple):
    key: str
    """Secret that is stored nowhere."""
    lines: str


def new_key(name: str) -> NewKey:
    """Draw a random key. Raises StartupError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise StartupError(f"{name[:64]!r} is not a valid key name: use letters, digits and . _ @ -")
    key = "sk-ocs-" + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return NewKey(key, f'[keys."{name}"]\nsha256 = "{digest}"')


logger = logging.getLogger(__name__)


class KeyRing:
    def __init__(
        self, api_key: str | None = None, path: Path | None = None, *, is_open_to_gateways: bool = False
    ) -> None:
        """`is_open_to_gateways`: their routes need no key. Raises StartupError."""
        self._is_open_to_gateways = is_open_to_gateways
        self._own: tuple[Key, ...] = ()
        if api_key is not None:
            digest = hashlib.sha256(api_key.encode()).digest()
            self._own = (Key(name="", digest=digest, scopes=ALL_SCOPES, mcp=ALL_MCP),)
        self._path = path
        self._keys = self._own + (read_keys(path) if path else ())

    @property
    def is_open(self) -> bool:
        return not self._keys

    def admits_strangers(self, access: Access) -> bool:
        return self._is_open_to_gateways and access.callers is Callers.GATEWAYS

    def with_digest(self, digest: bytes) -> Key | None:
        """Compare with all keys, so that the time reveals nothing."""
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def named(self, name: str) -> Key | None:
        return next((key for key in self._keys if key.name == name), None)

    def reload(self) -> None:
        """A broken file is logged and changes nothing."""
        if self._path is None:
            return
        try:
            self._keys = self._own + read_keys(self._path)
        except StartupError as error:
            logger.error("the keys are unchanged: %s", error)
        else:
            logger.info("%d API keys read from %s", len(self._keys) - len(self._own), self._path)


_DIGEST_CHARS = 16
Address = Union[IPv4Address, IPv6Address]
Network = Union[IPv4Network, IPv6Network]

_SITE_BITS = 64
"""A household has a whole /64 of IPv6, within which its address may change."""
_PORT = re.compile(r"^(?:\[([^\]]*)\](?::\d+)?|([^:]*):\d+)$")
"""`[2001:db8::1]`, with or without a port, and `192.0.2.1:80`."""
_FOR = re.compile(r'\bfor="?([^";,\s]+)', re.IGNORECASE)


class ClientKind(enum.Enum):
    KEY = "key"
    """Named key, which a body cannot claim."""
    USER = "user"
    """Body's `user`, which is not verified."""
    PEER = "peer"
    """Address, with the digest of any key without a name or need."""


class Client(msgspec.Struct, frozen=True):
    """Participant in the scheduler's fair turns. Its label returns with live requests."""

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
        """Return an address' common label, or "" for keys and unknown addresses."""
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
        """A body's `user` owns nothing."""
        if identity.may(Scope.ADMIN):
            return True
        return self.kind is ClientKind.KEY and self.name == identity.holder

    def shown_to(self, identity: Identity) -> str:
        """Hide addresses except from administrators' keys."""
        if self.kind is not ClientKind.PEER:
            return self.name
        digest, _, address = self.name.partition("@")
        is_administrator = identity.key is not None and identity.may(Scope.ADMIN)
        return "@".join(filter(None, (digest, address if is_administrator else "")))


def account_of(identity: Identity) -> str:
    """Return the key or address to blame for crashes, or "". A body's `user` is not trusted."""
    if identity.key is not None and identity.key.digest:
        return f"key:{identity.key.digest.hex()[:_DIGEST_CHARS]}"
    return f"address:{identity.address}" if identity.address else ""


def works_for(identity: Identity) -> None:
    """Make this task and its threads take turns as this client."""
    label = Client.of(identity, None).label
    CALLER.set((Client.group_of(identity) or label, label))


def key_of(label: str) -> str:
    client = Client.of_label(label)
    return client.name if client.kind is ClientKind.KEY else ""


def client_address(scope: AsgiScope, trusted: Collection[Network]) -> str | None:
    """Return the address, or its /64 of IPv6. Headers are believed up to the first untrusted hop."""
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
    """Require peer and all hops on this machine. Headers can only make it False."""
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
"""Browsers require one of the offered subprotocols."""
_KEY_PROTOCOL = "openai-insecure-api-key."
"""Carries a key, as at OpenAI, because pages cannot set a WebSocket's headers."""
_ADMIN_IS_LOCAL = (
    "Without API keys, only clients of the server's own machine have them: see --api-key, --api-keys "
    "and --open-admin."
)


class Credentials(msgspec.Struct, frozen=True):
    """Repeatable check of a request's access, because keys may change."""

    digest: str | None
    address: str | None
    access: Access
    is_visitor: bool
    """True for non-administrators without keys."""

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
        """`is_administrator`: has an effect only without keys."""
        offered = [name for name in scope.get("subprotocols", ()) if name.startswith(_KEY_PROTOCOL)]
        offered_key = offered[0].removeprefix(_KEY_PROTOCOL).encode("latin-1") if offered else None
        return cls(
            key_identity(key_in_headers(Headers(scope=scope)) or offered_key or None),
            client_address(scope, trusted_proxies),
            access,
            is_visitor=keys.is_open and not is_administrator,
        )

    def identity(self, keys: KeyRing) -> Identity:
        """Check the current keys. Raises Unauthorized, Forbidden."""
        identity = Identity(self._key(keys), self.digest, self.address)
        required = self.access.scope
        if required is None or identity.may(required) or keys.admits_strangers(self.access):
            return identity
        raise Forbidden(required.value, _ADMIN_IS_LOCAL if self.is_visitor else "")

    def _key(self, keys: KeyRing) -> Key | None:
        if keys.is_open:
            return VISITOR if self.is_visitor else None
        key = None if self.digest is None else keys.with_digest(bytes.fromhex(self.digest))
        if key is None and (self.access.scope is None or keys.admits_strangers(self.access)):
            key = STRANGER
        if key is None:
            raise Unauthorized("Missing or incorrect API key: send 'Authorization: Bearer KEY'.")
        return key


def key_in_headers(headers: Mapping[str, str]) -> bytes | None:
    """Return the bearer token or `x-api-key`. Clients without a key send an empty one."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else ""
    key = key or headers.get("x-api-key", "").strip()
    return key.encode("latin-1") or None  # as it came: headers are decoded so
