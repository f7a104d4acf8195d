"""Default files of prefix caches: one per model in the user's cache directory, limited by the free disk
space."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.config.folders import kept_cache_dir
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.step import CacheFileLimit
from openai_cpu_server.storage.private_files import SoleWriter

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_MOST_BYTES = 8192 * _MIB
_SHARE = 0.1
"""Limit of all files together, as a share of the free disk space."""
_MOST_OF_ONE = 1024 * _MIB
"""A file of this size is read and checked in 0.3 s of CPU time at the start (256 MiB: 0.07 s)."""
_LEAST = 16 * _MIB
_SECONDS = 5.0
_CELLS = "cells"


class _Kept(NamedTuple):
    path: Path
    num_bytes: int
    used_s: float


class PrefixFiles:
    """Files of one server. On construction the least recently used ones are removed until all fit."""

    def __init__(self, folder: Path | None, *, num_models: int, most_bytes: int = _MOST_BYTES) -> None:
        """`folder`: None if nothing can be kept. `most_bytes`: limit of all files together."""
        self._folder = folder if folder is not None and _is_writable(folder) else None
        if self._folder is None:
            logger.info("prefix caches are not kept: there is no cache directory that can be written")
            self._most_bytes = 0
            return
        room = _room(self._folder, most_bytes)
        self._most_bytes = min(_MOST_OF_ONE, room // num_models)
        if self._most_bytes < _LEAST:
            logger.info("prefix caches are not kept: the disk of %s is nearly full", self._folder)
        _sweep(self._folder, room)

    @classmethod
    def of_user(cls, *, num_models: int) -> PrefixFiles:
        base = kept_cache_dir()
        return cls(base and base / "prefixes", num_models=num_models)

    def kept(self, options: EngineOptions, name: str) -> EngineOptions:
        """Return the options with a file in a folder of its own, because an engine may write anything in
        its folder."""
        if self._folder is None or self._most_bytes < _LEAST or not options.cache_bytes:
            return options
        path = self._folder / _folder_name(options, name) / _CELLS
        limit = CacheFileLimit(min(self._most_bytes, options.cache_bytes), _SECONDS)
        return msgspec.structs.replace(options, cache_file=str(path), cache_file_limit=limit)


def _folder_name(options: EngineOptions, name: str) -> str:
    """Hash the model's path and everything that changes the KV layout. The engine checks the file's
    content itself."""
    facts = (
        Path(options.model_path).resolve(),
        options.kv_type,
        options.projector_path,
        options.flash_attention,
    )
    digest = hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9._-]', '_', name)[:64].lstrip('.')}-{digest}"


def _is_writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _room(folder: Path, most_bytes: int) -> int:
    while not folder.exists():
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return min(most_bytes, int(_SHARE * (free + sum(one.num_bytes for one in _files(folder)))))


def _files(folder: Path) -> list[_Kept]:
    """Return the files, most recently used first."""
    found = []
    for path in folder.glob(f"*/{_CELLS}*"):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            found.append(_Kept(path, facts.st_size, facts.st_mtime))
    return sorted(found, key=lambda one: one.used_s, reverse=True)


def _sweep(folder: Path, room: int) -> None:
    """Remove the files beyond the limit, except those that another server's engine keeps."""
    total = 0
    for one in _files(folder):
        total += one.num_bytes
        if total > room:
            _remove(one.path)


def _remove(path: Path) -> None:
    writer = SoleWriter(path)
    if not writer.may_write():
        return
    try:
        shutil.rmtree(path.parent)
        logger.info("the prefix cache %s is removed: there is no room for it", path.parent.name)
    except OSError as error:
        logger.warning("the prefix cache %s is not removed: %s", path, error)
    finally:
        writer.release()
