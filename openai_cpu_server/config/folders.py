"""The user's own folders, where the system says which they are: whoever runs in a container may have neither
a name nor a home."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from openai_cpu_server.errors import StartupError
from openai_cpu_server.storage.private_files import private_folder

_NAME = "openai-cpu-server"


def user_cache_dir() -> Path:
    """For what can be made again. Without a home it is in the folder for temporary files, and nobody else
    can have filled it. Raises StartupError."""
    base = _base("XDG_CACHE_HOME", ".cache")
    if base is not None:
        return base / _NAME
    try:
        return private_folder(Path(tempfile.gettempdir()) / f"{_NAME}-{os.geteuid()}")
    except OSError as error:
        raise StartupError(f"there is no folder for caches: {error}") from None


def user_data_dir() -> Path:
    """For what is to stay. Raises StartupError where the user has no home."""
    base = _base("XDG_DATA_HOME", ".local/share")
    if base is None:
        raise StartupError(f"user {os.geteuid()} has no home directory: set HOME or XDG_DATA_HOME")
    return base / _NAME


def expanded(path: Path | str) -> Path:
    """With the home in place of `~`. Raises StartupError where there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise StartupError(f"cannot look for {path}: there is no such home directory") from None


def require_utf8(path: Path | str, origin: str = "the name") -> None:
    """Raises StartupError for what the system has given that no other process and no client can be told."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise StartupError(f"{origin} {str(path)!a} is not UTF-8") from None


def _base(variable: str, below_home: str) -> Path | None:
    """A relative path in the variable counts as none, as its specification says."""
    named = Path(os.environ.get(variable, ""))
    try:
        base = named if named.is_absolute() else Path.home() / below_home
    except RuntimeError:
        return None
    require_utf8(base)
    return base
