"""API keys as digests, the file that lists them, and the access that a route requires."""

from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import re
import secrets
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import StartupError
from openai_cpu_server.jobs.records import NO_LIMITS, StorageLimits


class Scope(enum.Enum):
    INFERENCE = "inference"
    """Models, generation, tokens, and the client's own requests."""
    METRICS = "metrics"
    ADMIN = "admin"
    """Cache, adapters, loading of models, and all requests."""


ALL_SCOPES = frozenset(Scope)
ALL_MCP = frozenset({"*", "url:*"})

Amount = Annotated[int, msgspec.Meta(ge=1)]


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key, or None for no limit."""

    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    tokens_per_day: Amount | None = None
    concurrent: Amount | None = None
    """Calls at once in this server process."""
    batch_tokens_per_day: Amount | None = None
    """Tokens of batch rows, which no other limit counts."""
    stored_mb: Amount | None = None
    """Files, results of batches, responses and conversations."""
    files: Amount | None = None

    @property
    def storage(self) -> StorageLimits:
        max_bytes = None if self.stored_mb is None else self.stored_mb * 1024 * 1024
        return StorageLimits(max_bytes=max_bytes, max_files=self.files)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Holder, to whom the scheduler is fair, or "" for the key of `--api-key`, which many may share."""
    digest: bytes
    """SHA-256 of the key."""
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE})
    priority: Priority | None = None
    """Priority of requests that name none, or None for the server's default."""
    max_priority: Priority = Priority.INTERACTIVE
    models: frozenset[str] | None = None
    """Names of allowed models, or None for all."""
    mcp: frozenset[str] = frozenset()
    """Allowed MCP servers: `NAME`, `NAME/TOOL`, `*`; `url:HOST` and `url:*` for servers named by URL."""
    allowance: Allowance = Allowance()


class Identity(msgspec.Struct, frozen=True):
    key: Key | None
    """Key, or None on a server without keys, where everything is allowed."""
    digest: str | None
    """SHA-256 in hex of the key that was sent, even if it was not needed."""
    address: str | None = None

    @property
    def holder(self) -> str | None:
        return self.key.name or None if self.key else None

    @property
    def storage(self) -> StorageLimits:
        return self.key.allowance.storage if self.key else NO_LIMITS

    @property
    def allowed_models(self) -> frozenset[str] | None:
        return self.key.models if self.key else None

    def may_call(self, server: str, tool: str | None = None) -> bool:
        """`server`: name of an MCP server, or `url:HOST`. `tool`: None for any of its tools."""
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
"""Stands for the missing key on a server with keys; allows nothing."""
VISITOR = Key(name="", digest=b"", scopes=frozenset({Scope.INFERENCE, Scope.METRICS}))
"""Stands for the key of a remote sender on a server without keys, whose administrators are local."""


class Metering(enum.Enum):
    NONE = "none"
    REQUESTS = "requests"
    """Counts per minute but not in `concurrent`, because it waits for a call that does."""
    WORK = "work"
    """Counts in `concurrent` too."""
    CALLS = "calls"
    """Counts tokens too, because it generates or embeds."""


class Callers(enum.Enum):
    CLIENTS = "clients"
    PROBES = "probes"
    """Health checks, which are not logged and answered even beyond the limit of connections."""
    GATEWAYS = "gateways"
    """Frequent readers in front of several servers. Not logged, and no key under `--open-to-gateways`."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    scope: Scope | None
    """Required scope, or None if the route needs no key."""
    metering: Metering = Metering.NONE
    callers: Callers = Callers.CLIENTS
    is_upload: bool = False

    @property
    def is_quiet(self) -> bool:
        return self.callers is not Callers.CLIENTS


OPEN = Access(scope=None)
"""For routes that reveal nothing secret."""
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
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


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
    """Return the keys of a file. Raises StartupError, in one line that never repeats the file's values."""
    try:
        entries = msgspec.toml.decode(path.read_bytes(), type=_File).keys
        _check(entries)
    except (OSError, ValueError, msgspec.DecodeError) as error:
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
        if not NAME.fullmatch(name):
            raise ValueError(f"{name[:64]!r} is not a valid key name")
        if entry.priority is not None and _priority(entry.priority) < _priority(entry.max_priority):
            raise ValueError(f"the priority of {name!r} exceeds its max_priority")
    if len({entry.sha256.lower() for entry in entries.values()}) < len(entries):
        raise ValueError("two keys have the same sha256")


def _priority(label: Label) -> Priority:
    return Priority[label.upper()]


class NewKey(NamedTuple):
    key: str
    """Secret, which is stored nowhere."""
    lines: str


def new_key(name: str) -> NewKey:
    """Return a random key. Raises StartupError for an invalid name."""
    if not NAME.fullmatch(name):
        raise StartupError(f"{name[:64]!r} is not a valid key name: use letters, digits and . _ @ -")
    key = "sk-ocs-" + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return NewKey(key, f'[keys."{name}"]\nsha256 = "{digest}"')


logger = logging.getLogger(__name__)


class KeyRing:
    def __init__(
        self, api_key: str | None = None, path: Path | None = None, *, is_open_to_gateways: bool = False
    ) -> None:
        """`is_open_to_gateways`: routes for gateways need no key. Raises StartupError."""
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
        """Read the file again, if there is one. A broken file is logged and changes nothing."""
        if self._path is None:
            return
        try:
            self._keys = self._own + read_keys(self._path)
        except StartupError as error:
            logger.error("the keys stay as they were: %s", error)
        else:
            logger.info("%d API keys read from %s", len(self._keys) - len(self._own), self._path)
