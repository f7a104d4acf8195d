"""Files with users' texts, or data for native code, which only this user may access. A file of another user
is rejected, because that user can change it at any time."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger(__name__)

_OWNERS = 0o700
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = 0
_DRAFT = ".draft"
_BESIDE_SQLITE = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps beside a database. New ones get the database's mode, existing ones keep theirs."""


class ForeignFile(OSError):
    """The message is one line."""


def keep_private(path: Path) -> None:
    """Make a file private, or create it empty. Raises OSError, and `ForeignFile` for another user's file."""
    if path.is_symlink():
        _require_own(path, path.lstat(), path.parent)
        path = path.resolve()
    try:
        os.close(os.open(path, os.O_RDWR | _NEW, 0o600))
    except FileExistsError:
        _make_private(path)


def keep_database_private(path: Path) -> None:
    """Make a SQLite database and its logs private, before SQLite opens it. Raises OSError."""
    keep_private(path)
    real = path.resolve()
    for ending in _BESIDE_SQLITE:
        beside = real.with_name(real.name + ending)
        if beside.is_symlink() or beside.exists():
            _make_private(beside)


def private_folder(path: Path) -> Path:
    """Create a folder, or check that only this user can have filled it, for guessable places such as /tmp.
    Raises OSError."""
    path.mkdir(mode=_OWNERS, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ForeignFile(f"{path} is not a folder")
    _require_own(path, found, path)
    _take_from_others(path, found)
    return path


def claim(path: Path, descriptor: int) -> None:
    """Check an open file, and make it private; root's may be readable by all. Raises OSError, and
    `ForeignFile` for another owner."""
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid():
        _take_from_others(path, found)
    elif found.st_uid != _ROOT:
        _require_own(path, found, path.parent)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Yield a new file that atomically replaces the old one, synced, if nothing fails; drafts of killed
    processes, perhaps gigabytes, are removed. `mode`: 0o666 for readers by the user's umask."""
    _remove_orphans(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_DRAFT}")
    descriptor = os.open(draft, os.O_WRONLY | _NEW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _lock(descriptor)
            yield file
            file.flush()
            os.fsync(descriptor)
            draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class SoleWriter:
    """Election of a file's one writer: the first process to call `may_write`, until it ends."""

    def __init__(self, path: Path) -> None:
        self._lock = path.with_name(f".{path.name}.lock")
        self._descriptor: int | None = None

    def may_write(self) -> bool:
        """Return True if elected, and always on file systems without locks."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            return True
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _make_private(path: Path) -> None:
    """Examines the file by name, because closing it would drop locks that this process (SQLite) holds on
    it."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ForeignFile(f"{path} is not a regular file")
    _require_own(path, found, path.parent)
    _take_from_others(path, found)


def _take_from_others(path: Path, found: os.stat_result) -> None:
    if not found.st_mode & ~_OWNERS & 0o777:
        return
    try:
        path.chmod(found.st_mode & _OWNERS)
    except OSError as error:  # some file systems have no modes, or are read-only
        logger.warning("other users may read %s: %s", path, error.strerror)


def _require_own(path: Path, found: os.stat_result, folder: Path) -> None:
    me = os.geteuid()
    if found.st_uid != me and found.st_uid != _owner_of_new_files(folder):
        raise ForeignFile(f"{path} belongs to another user (id {found.st_uid}, this one is {me})")


def _owner_of_new_files(folder: Path) -> int | None:
    """Some network file systems have one owner for all files."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_uid
    return None


def _lock(descriptor: int) -> bool:
    """Return False if the lock is held, or the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_orphans(path: Path) -> None:
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*{_DRAFT}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if _lock(descriptor):
                    draft.unlink()
            finally:
                os.close(descriptor)
