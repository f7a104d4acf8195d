"""The TOML file of `--api-keys`: a table `[keys.NAME]` for each key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from openai_cpu_server.api.access.keys import ALL_SCOPES, Allowance, Key, Scope
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import StartupError

Label = Literal["interactive", "batch"]
Amount = Annotated[int, msgspec.Meta(ge=1)]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")]
    priority: Label | None = None
    max_priority: Label = "interactive"
    models: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    scopes: tuple[Scope, ...] = (Scope.INFERENCE,)
    admin: bool = False
    """The key has all scopes."""
    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    tokens_per_day: Amount | None = None
    concurrent: Amount | None = None
    batch_tokens_per_day: Amount | None = None
    stored_mb: Amount | None = None
    files: Amount | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: Annotated[dict[str, _Entry], msgspec.Meta(min_length=1)]


def read_keys(path: Path) -> tuple[Key, ...]:
    """Raises StartupError: one line says what is wrong and where, and never what is written there."""
    try:
        entries = msgspec.toml.decode(path.read_bytes(), type=_File).keys
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise StartupError(f"cannot read the keys of {path}: {_one_line(error)}") from None
    _check_names(entries, path)
    _check_priorities(entries, path)
    keys = tuple(_key(name, entry) for name, entry in entries.items())
    if len({key.digest for key in keys}) < len(keys):
        raise StartupError(f"cannot read the keys of {path}: two keys have the same sha256")
    return keys


def _check_names(entries: dict[str, _Entry], path: Path) -> None:
    for name in entries:
        if not NAME.fullmatch(name):
            raise StartupError(f"cannot read the keys of {path}: {name[:64]!r} is no name for a key")


def _check_priorities(entries: dict[str, _Entry], path: Path) -> None:
    for name, entry in entries.items():
        if entry.priority is not None and _priority(entry.priority) < _priority(entry.max_priority):
            raise StartupError(
                f"cannot read the keys of {path}: the priority of {name!r} exceeds its max_priority"
            )


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
        allowance=Allowance(
            requests_per_minute=entry.requests_per_minute,
            tokens_per_minute=entry.tokens_per_minute,
            tokens_per_day=entry.tokens_per_day,
            concurrent=entry.concurrent,
            batch_tokens_per_day=entry.batch_tokens_per_day,
            stored_mb=entry.stored_mb,
            files=entry.files,
        ),
    )


def _one_line(error: Exception) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else str(error).replace("\n", " ")
