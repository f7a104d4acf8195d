"""Files that hold what people wrote, or that native code will read: only this user may read and write them.

Whoever keeps one on disk makes it here: the jobs database, the cache of answers, the prefix cache, what was
measured. A file of another user is refused, because that user reads along and may change it under us.
"""

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
"""The bits that the owner alone has."""
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = 0
_DRAFT = ".draft"
_BESIDE_SQLITE = ("-wal", "-shm", "-journal")
"""What SQLite puts beside a database. New ones get the database's mode, old ones are taken as they are."""


class ForeignFile(OSError):
    """It belongs to another user, or is no plain file; the message says so in one line."""


def keep_private(path: Path) -> None:
    """There is such a file afterwards, an empty one if need be, that is nobody else's.
    Raises OSError, `ForeignFile` for one of another user."""
    if path.is_symlink():
        _require_own(path, path.lstat(), path.parent)
        path = path.resolve()
    try:
        os.close(os.open(path, os.O_RDWR | _NEW, 0o600))
    except FileExistsError:
        _make_private(path)


def keep_database_private(path: Path) -> None:
    """The same for a file of SQLite, before SQLite opens it, and for its log. Raises OSError."""
    keep_private(path)
    real = path.resolve()
    for ending in _BESIDE_SQLITE:
        beside = real.with_name(real.name + ending)
        if beside.is_symlink() or beside.exists():
            _make_private(beside)


def private_folder(path: Path) -> Path:
    """The folder, which only this user can have filled; made if need be.

    For places that others can guess and write to, such as the folder for temporary files. Raises OSError.
    """
    path.mkdir(mode=_OWNERS, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ForeignFile(f"{path} is not a folder")
    _require_own(path, found, path)
    _take_from_others(path, found)
    return path


def claim(path: Path, descriptor: int) -> None:
    """For an open file that is going to be believed: this user's is private afterwards, root's may be read by
    all. Raises `ForeignFile` for anybody else's, OSError."""
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid():
        _take_from_others(path, found)
    elif found.st_uid != _ROOT:
        _require_own(path, found, path.parent)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Yields a new file that replaces the old one, on disk as well, if nothing fails: nobody ever sees half
    of one. Drafts of processes that were killed meanwhile are removed, for they can have gigabytes.

    `mode`: 0o666 for what is made for a user, whose umask then says who reads it.
    """
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
    _sync_folder(path.parent)


class SoleWriter:
    """Of the processes that would write one file one does: the first that asks, until it ends."""

    def __init__(self, path: Path) -> None:
        self._lock = path.with_name(f".{path.name}.lock")
        self._descriptor: int | None = None
        """Open as long as this process lives, if it is the one."""

    def may_write(self) -> bool:
        """Asks anew where another process was the one. Where nothing can be locked, everybody may."""
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
    """Looks by name and opens nothing: closing a file takes the locks from whoever has it open in this
    process, as SQLite may."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ForeignFile(f"{path} is not a plain file")
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
    """Some file systems of networks know one owner only, whoever writes; None: nothing can be written."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_uid
    return None


def _lock(descriptor: int) -> bool:
    """False: somebody has the lock. A file system without locks gives none to anybody."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_orphans(path: Path) -> None:
    """A draft that nobody has locked is nobody's any more."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*{_DRAFT}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if _lock(descriptor):
                    draft.unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
