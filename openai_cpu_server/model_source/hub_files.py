"""Files in the hub's cache. The hub's library restarts an interrupted download and checks only the size.
Here partial content is kept under its hash, and the library takes it over once it is verified."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_CACHE, MAX_HTTP_DOWNLOAD_SIZE
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils._headers import build_hf_headers

from openai_cpu_server.errors import StartupError

Progress = Callable[[int], None]
"""Receives the bytes so far. An exception ends the download, and keeps them."""
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 22


class HubFile(msgspec.Struct, frozen=True, kw_only=True):
    repo: str
    path: str
    size: int
    etag: str
    """SHA-256 of the content, or git's hash for a small file."""
    commit: str

    @classmethod
    def asked(cls, repo: str, path: str) -> HubFile:
        metadata = get_hf_file_metadata(hf_hub_url(repo, path))
        etag, commit = metadata.etag or "", metadata.commit_hash or ""
        # Both become names of files.
        if not (_SHA256.fullmatch(etag) or _SHA1.fullmatch(etag)) or not _SHA1.fullmatch(commit):
            raise StartupError(f"the hub does not say which content {repo}/{path} has")
        if metadata.size is None:
            raise StartupError(f"the hub does not say how large {repo}/{path} is")
        return cls(repo=repo, path=path, size=metadata.size, etag=etag, commit=commit)

    @property
    def blob(self) -> Path:
        return repo_folder(self.repo) / "blobs" / self.etag

    @property
    def partial(self) -> Path:
        return self.blob.with_name(f"{self.etag}.partial")

    @property
    def is_here(self) -> bool:
        kept = try_to_load_from_cache(self.repo, self.path, revision=self.commit)
        return isinstance(kept, str) or self.blob.exists()

    @property
    def digest(self) -> str:
        return f"sha256:{self.etag}" if _SHA256.fullmatch(self.etag) else self.etag

    @property
    def bytes_here(self) -> int:
        if self.is_here:
            return self.size
        return self.partial.stat().st_size if self.partial.exists() else 0

    @property
    def missing_bytes(self) -> int:
        return max(0, self.size - self.bytes_here)


def repo_folder(repo: str) -> Path:
    return Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")


def require_space(repo: str, files: Iterable[HubFile], *, keep_free: int = 0) -> None:
    """Check the disk. Raises StartupError with the arithmetic."""
    missing = sum(file.missing_bytes for file in files)
    cache = Path(HF_HUB_CACHE)
    folder = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    if missing and free < missing + keep_free:
        kept = f", of which {in_gb(keep_free)} are kept free" if keep_free else ""
        raise StartupError(
            f"not enough disk space for {repo}: {in_gb(missing)} are needed, {in_gb(free)} free in {cache}"
            f"{kept}"
        )


def in_gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


def fetched(file: HubFile, progress: Progress | None = None) -> Path:
    """Download and verify a file. A second process waits. Raises StartupError for damage, and what the
    hub's library raises. `progress`: None shows a bar."""
    if not file.is_here and file.size <= MAX_HTTP_DOWNLOAD_SIZE:  # larger ones come in another way
        file.blob.parent.mkdir(parents=True, exist_ok=True)
        with _partial(file) as begun:
            if begun is not None:
                _complete(file, begun, progress)
                _check(file)
                file.partial.replace(file.blob)
    return Path(hf_hub_download(file.repo, file.path))


@contextmanager
def _partial(file: HubFile) -> Iterator[BinaryIO | None]:
    """Yield None if another process has just completed it."""
    while True:
        with file.partial.open("ab") as begun:
            fcntl.flock(begun, fcntl.LOCK_EX)  # it goes with the process
            if file.is_here:
                yield None
                return
            if os.fstat(begun.fileno()).st_nlink:  # else whoever had it has thrown it away
                yield begun
                return


def _complete(file: HubFile, begun: BinaryIO, progress: Progress | None) -> None:
    if begun.tell() > file.size:
        begun.truncate(0)
    at = begun.seek(0, os.SEEK_END)
    http_get(
        hf_hub_url(file.repo, file.path),
        cast("BinaryIO", _Bounded(begun, file)),
        resume_size=at,
        headers=build_hf_headers(),
        expected_size=file.size,
        displayed_filename=file.path,
        _tqdm_bar=None if progress is None else _Silent(begun, progress),
    )
    begun.flush()


class _Bounded:
    """The disk was checked for no more than the announced size."""

    def __init__(self, begun: BinaryIO, file: HubFile) -> None:
        self._begun = begun
        self._file = file

    def write(self, data: bytes) -> int:
        if self._begun.tell() + len(data) > self._file.size:
            self._begun.truncate(0)
            raise StartupError(
                f"the hub sends more of {self._file.path} than the {in_gb(self._file.size)} that it announced"
            )
        return self._begun.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._begun, name)


class _Silent:
    """Progress bar for the library that draws nothing."""

    def __init__(self, begun: BinaryIO, progress: Progress) -> None:
        self._begun = begun
        self._progress = progress

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, num_bytes: float) -> None:
        self._progress(self._begun.tell() + int(num_bytes))


def _check(file: HubFile) -> None:
    if _SHA256.fullmatch(file.etag):
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with file.partial.open("rb") as whole:
        while chunk := whole.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != file.etag:
        file.partial.unlink()
        raise StartupError(
            f"{file.repo}/{file.path} has come with other content than the hub names ({file.etag}): "
            "it was thrown away; fetch it again"
        )


def removed(repo: str, paths: Iterable[str]) -> int:
    """Remove files and unreferenced content, and return the freed bytes. Raises StartupError if they are
    in use."""
    folder, gone = repo_folder(repo), set(paths)
    links = [link for link in _links(folder) if _within_revision(folder, link) in gone]
    before = _size(folder)
    _require_unheld(links)
    for link in links:
        link.unlink(missing_ok=True)
    left = list(_links(folder))
    if not left:
        shutil.rmtree(folder, ignore_errors=True)
        return before
    named = {link.resolve() for link in left}
    for blob in (folder / "blobs").glob("*"):
        is_content = blob.suffix not in (".partial", ".incomplete")
        if is_content and blob.resolve() not in named:
            blob.unlink(missing_ok=True)
    return before - _size(folder)


def abandoned(repo: str) -> int:
    before = _size(repo_folder(repo))
    for partial in (repo_folder(repo) / "blobs").glob("*.partial"):
        partial.unlink(missing_ok=True)
    return before - _size(repo_folder(repo))


def _require_unheld(links: Iterable[Path]) -> None:
    for link in links:
        with link.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StartupError(f"a running server has {link.name} in use") from None


def _links(folder: Path) -> Iterator[Path]:
    return (link for link in (folder / "snapshots").rglob("*") if link.is_file())


def _within_revision(folder: Path, link: Path) -> str:
    return link.relative_to(folder / "snapshots").as_posix().partition("/")[2]


def _size(folder: Path) -> int:
    return sum(
        path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )
