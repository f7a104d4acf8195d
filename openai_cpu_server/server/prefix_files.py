"""Where prefix caches are kept between runs unless a user says otherwise: a file for each model in the user's
cache directory, bounded by what the disk has left."""

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
"""All files together take no more than that, and no more than this share of what the disk has left."""
_MOST_OF_ONE = 1024 * _MIB
"""It is read and checked in 0.3 s of CPU time at a start (256 MiB: 0.07 s)."""
_LEAST = 16 * _MIB
_SECONDS = 5.0
_CELLS = "cells"


class _Kept(NamedTuple):
    path: Path
    num_bytes: int
    used_s: float


class PrefixFiles:
    """The files of one server. When it is made, what was used longest ago goes, until all have room."""

    def __init__(self, folder: Path | None, *, num_models: int, most_bytes: int = _MOST_BYTES) -> None:
        """`folder`: None where nothing can be kept. `most_bytes`: of all files together."""
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
        """With a file, in a folder of its own: an engine may write whatever is in it."""
        if self._folder is None or self._most_bytes < _LEAST or not options.cache_bytes:
            return options
        path = self._folder / _folder_name(options, name) / _CELLS
        limit = CacheFileLimit(min(self._most_bytes, options.cache_bytes), _SECONDS)
        return msgspec.structs.replace(options, cache_file=str(path), cache_file_limit=limit)


def _folder_name(options: EngineOptions, name: str) -> str:
    """Of the model's path, and of what makes its cells another kind; what is in the model's file the engine
    compares."""
    facts = (
        Path(options.model_path).resolve(),
        options.kv_type,
        options.projector_path,
        options.flash_attention,
    )
    digest = hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9._-]', '_', name)[:64].lstrip('.')}-{digest}"


def _is_writable(folder: Path) -> bool:
    """Whether it is there or can be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _room(folder: Path, most_bytes: int) -> int:
    """The bytes that all files may have together."""
    while not folder.exists():
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return min(most_bytes, int(_SHARE * (free + sum(one.num_bytes for one in _files(folder)))))


def _files(folder: Path) -> list[_Kept]:
    """The last that was used first."""
    found = []
    for path in folder.glob(f"*/{_CELLS}*"):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            found.append(_Kept(path, facts.st_size, facts.st_mtime))
    return sorted(found, key=lambda one: one.used_s, reverse=True)


def _sweep(folder: Path, room: int) -> None:
    """Removes what exceeds the room. What an engine of another server keeps stays."""
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
