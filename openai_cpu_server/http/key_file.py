"""API keys: new ones, the file that lists them, and the ring that looks them up."""

from __future__ import annotations

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
from openai_cpu_server.http.keys import ALL_MCP, ALL_SCOPES, Access, Allowance, Callers, Key, Scope

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
        said = error.strerror or "unreadable" if isinstance(error, OSError) else str(error).replace("\n", " ")
        raise StartupError(f"cannot read the keys of {path}: {said}") from None
    return tuple(_key(name, entry) for name, entry in entries.items())


def _check(entries: dict[str, _Entry]) -> None:
    for name in entries:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name[:64]!r} is no name for a key")
    for name, entry in entries.items():
        if entry.priority is not None and _priority(entry.priority) < _priority(entry.max_priority):
            raise ValueError(f"the priority of {name!r} exceeds its max_priority")
    if len({entry.sha256.lower() for entry in entries.values()}) < len(entries):
        raise ValueError("two keys have the same sha256")


def _priority(label: Label) -> Priority:
    return Priority[label.upper()]


def _key(name: str, entry: _Entry) -> Key:
    return Key(
        name=name,
        digest=bytes.fromhex(entry.sha256),
        scopes=ALL_SCOPES if entry.admin else frozenset(entry.scopes),
        priority=_priority(entry.priority) if entry.priority else None,
        max_priority=_priority(entry.max_priority),
        models=frozenset(entry.models) if entry.models is not None else None,
        mcp=entry.mcp,
        allowance=msgspec.convert(entry, Allowance, from_attributes=True),
    )


_PREFIX = "sk-ocs-"
_RANDOM_BYTES = 32


class NewKey(NamedTuple):
    key: str
    """Secret, which is stored nowhere."""
    lines: str


def new_key(name: str) -> NewKey:
    """Return a random key. Raises StartupError for an invalid name."""
    if not NAME.fullmatch(name):
        raise StartupError(f"{name[:64]!r} is no name for a key: use letters, digits and . _ @ -")
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return NewKey(key, f'[keys."{name}"]\nsha256 = "{digest}"')


logger = logging.getLogger(__name__)


class KeyRing:
    def __init__(
        self, api_key: str | None = None, path: Path | None = None, *, is_open_to_gateways: bool = False
    ) -> None:
        """`is_open_to_gateways`: routes for gateways need no key. Raises StartupError."""
        self._is_open_to_gateways = is_open_to_gateways
        self._own = () if api_key is None else (_shared_key(api_key),)
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


def _shared_key(key: str) -> Key:
    return Key(name="", digest=hashlib.sha256(key.encode()).digest(), scopes=ALL_SCOPES, mcp=ALL_MCP)
