"""Default files of prefix caches, one per model in the user's cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from pathlib import Path

import msgspec

from openai_cpu_server.config.folders import lasting_cache_dir
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.step import CacheFileLimit
from openai_cpu_server.storage.private_files import SoleWriter

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_MOST_BYTES = 8192 * _MIB
_SHARE = 0.1
"""Share of the free disk space for all files."""
_MOST_OF_ONE = 1024 * _MIB
"""Size that is read and checked in 0.3 s of CPU time at the start (256 MiB: 0.07 s)."""
_LEAST = 16 * _MIB
_SECONDS = 5.0
_CELLS = "cells"


class PrefixFiles:
    """Files of one server. Construction removes the least recently used ones beyond the limit."""

    def __init__(self, folder: Path | None, *, num_models: int, most_bytes: int = _MOST_BYTES) -> None:
        """`folder`: None if nothing can be kept. `most_bytes`: for all files together."""
        self._folder: Path | None = None
        self._most_bytes = 0
        there = None if folder is None else _nearest(folder)
        if folder is None or there is None or not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            logger.info("prefix caches are not stored: no cache directory is writable")
            return
        self._folder, room = folder, _room(folder, most_bytes)
        self._most_bytes = min(_MOST_OF_ONE, room // num_models)
        if self._most_bytes < _LEAST:
            logger.info("prefix caches are not stored: the disk of %s is nearly full", folder)
        total = 0
        for path, num_bytes in _files(folder):
            total += num_bytes
            if total > room:
                _remove(path)

    @classmethod
    def of_user(cls, *, num_models: int) -> PrefixFiles:
        base = lasting_cache_dir()
        return cls(base and base / "prefixes", num_models=num_models)

    def with_file(self, options: EngineOptions, name: str) -> EngineOptions:
        """Give each model a folder, because its engine may write anything there."""
        if self._folder is None or self._most_bytes < _LEAST or not options.cache_bytes:
            return options
        facts = (
            Path(options.model_path).resolve(),
            options.kv_type,
            options.projector_path,
            options.flash_attention,
        )  # whatever changes the layout of cells; the engine checks the file's content itself
        digest = hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:16]
        plain_name = re.sub("[^A-Za-z0-9._-]", "_", name)[:64].lstrip(".")
        path = self._folder / f"{plain_name}-{digest}" / _CELLS
        limit = CacheFileLimit(min(self._most_bytes, options.cache_bytes), _SECONDS)
        return msgspec.structs.replace(options, cache_file=str(path), cache_file_limit=limit)


def _nearest(folder: Path) -> Path:
    """Return the nearest existing folder."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _room(folder: Path, most_bytes: int) -> int:
    try:
        free = shutil.disk_usage(_nearest(folder)).free
    except OSError:
        return 0
    return min(most_bytes, int(_SHARE * (free + sum(num_bytes for _, num_bytes in _files(folder)))))


def _files(folder: Path) -> list[tuple[Path, int]]:
    found = []
    for path in folder.glob(f"*/{_CELLS}*"):
        with contextlib.suppress(OSError):
            found.append((path, path.lstat()))
    found.sort(key=lambda file: file[1].st_mtime, reverse=True)
    return [(path, facts.st_size) for path, facts in found]


def _remove(path: Path) -> None:
    """Remove a file, unless another server's engine keeps it."""
    writer = SoleWriter(path)
    if not writer.may_write():
        return
    try:
        shutil.rmtree(path.parent)
        logger.info("the prefix cache %s was removed: it has no room", path.parent.name)
    except OSError as error:
        logger.warning("the prefix cache %s cannot be removed: %s", path, error)
    finally:
        writer.release()
