"""What is in a model's files, and whether they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MIB = 1024 * 1024


class Stamp(NamedTuple):
    """It tells two states of a file apart."""

    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Stamp | None:
        """None: there is no such file."""
        try:
            found = path.stat()
        except OSError:
            return None
        return cls(found.st_ino, found.st_mtime_ns, found.st_size)


class FileContent:
    """What is in the files of a model, as they were when this was made."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._stamps = {path: Stamp.of(path) for path in files}

    def digest(self) -> str | None:
        """SHA-256 over all of them. None: they have changed, or cannot be read."""
        digest = hashlib.sha256()
        try:
            for path in self._stamps:
                _add_file(digest, path)
        except OSError:
            return None
        is_same = all(Stamp.of(path) == stamp for path, stamp in self._stamps.items())
        return digest.hexdigest() if is_same else None


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        while chunk := file.read(_MIB):
            digest.update(chunk)
