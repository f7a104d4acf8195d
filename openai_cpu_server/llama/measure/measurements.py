"""Keeps measurements on disk, each in a small JSON file whose name comes from what it depends on."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TypeVar

import msgspec

from openai_cpu_server.private_files import claim, replacing

logger = logging.getLogger(__name__)

_Key = TypeVar("_Key", bound=msgspec.Struct)
_Value = TypeVar("_Value", bound=msgspec.Struct)


class _Entry(msgspec.Struct):
    key: msgspec.Raw
    value: msgspec.Raw


class Measurements:
    """A folder of measurements. A missing or damaged file, or one with another key, counts as absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: msgspec.Struct) -> Path:
        digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16]
        return self._folder / f"{_kind(type(key))}-{digest}.json"

    def get(self, key: msgspec.Struct, type_: type[_Value]) -> _Value | None:
        path = self.path(key)
        try:
            entry = msgspec.json.decode(_trusted(path), type=_Entry)
            if msgspec.json.decode(entry.key, type=type(key)) != key:
                return None
            return msgspec.json.decode(entry.value, type=type_)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            logger.warning("ignoring %s: %s", path, error)
            return None

    def all_of(self, key_type: type[_Key], type_: type[_Value]) -> list[tuple[_Key, _Value]]:
        """All measurements whose keys have this type, the newest first."""
        found = []
        for path in sorted(self._folder.glob(f"{_kind(key_type)}-*.json"), key=_age):
            try:
                entry = msgspec.json.decode(_trusted(path), type=_Entry)
                key = msgspec.json.decode(entry.key, type=key_type)
                found.append((key, msgspec.json.decode(entry.value, type=type_)))
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                logger.debug("passing over %s: %s", path, error)
        return found

    def put(self, key: msgspec.Struct, value: msgspec.Struct) -> bool:
        """Store a measurement whole. Returns False, and logs why, where nothing can be written."""
        path = self.path(key)
        entry = _Entry(_raw(key), _raw(value))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(entry), indent=2))
        except OSError as error:
            logger.warning("cannot keep what was measured in %s: %s", path.parent, error.strerror or error)
            return False
        return True


def _kind(key_type: type[msgspec.Struct]) -> str:
    return key_type.__name__.removesuffix("Key").lower()


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:  # gone meanwhile
        return 0.0


def _raw(value: msgspec.Struct) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _trusted(path: Path) -> bytes:
    """The file's content: engines are run as it says. Raises OSError."""
    with path.open("rb") as file:
        claim(path, file.fileno())
        return file.read()
