"""Models of the hub and its cache, with errors that advise on one line.

The hub's library restarts interrupted downloads and checks only the size. Here partial content is stored
under its hash, and the library takes it over once verified.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import msgspec
from huggingface_hub import (
    CacheNotFound,
    HfApi,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    scan_cache_dir,
    try_to_load_from_cache,
)
from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, MAX_HTTP_DOWNLOAD_SIZE
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)

# The hub's library has changed its HTTP library twice; this is the base of its errors, whichever it is.
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils._headers import build_hf_headers

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.names import (
    HubName,
    drafting_files,
    heads,
    is_file_name,
    model_parts,
    named_models,
    preferred,
    preferred_head,
    preferred_projector,
    projectors,
    quantisation,
)

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_BEFORE_FILE = "/resolve/main/"
_AWAY = (
    "; check the network, HF_ENDPOINT and HTTPS_PROXY (`openai-cpu-server list` shows the models on "
    "this machine)"
)
_AUTHENTICATE = "set HF_TOKEN to a token that may read it"


def one_line_error(error: Exception, name: HubName) -> str:
    what = f"{name.repo}/{name.file}" if name.file else name.repo
    match error:
        case OfflineModeIsEnabled():
            return f"HF_HUB_OFFLINE is set, and {what} is not in the cache ({HF_HUB_CACHE})"
        case LocalEntryNotFoundError():
            return f"the connection to {ENDPOINT} broke, and {what} is not in the cache ({HF_HUB_CACHE})"
        case HfHubHTTPError():
            return _answer(error, name, what)
        case HFValidationError():
            return f"{name.repo} is not a valid repository name: use letters, digits, '-', '_' and '.'"
        case TransportError():
            return f"the connection to {ENDPOINT} for {what} failed: {_first_line(error)}{_AWAY}"
        case OSError(errno=int()):
            return f"cannot store {what} in {HF_HUB_CACHE}: {error.strerror}"
    return f"cannot fetch {what}: {_first_line(error)}"


def _answer(error: HfHubHTTPError, name: HubName, what: str) -> str:
    status = error.response.status_code
    if isinstance(error, EntryNotFoundError):
        return f"{name.repo} has no file {unquote(str(error.response.url)).partition(_BEFORE_FILE)[2]}"
    if isinstance(error, GatedRepoError):
        return f"{name.repo} is gated: accept its terms on the hub, then {_AUTHENTICATE}"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"the repository {name.repo} does not exist on {ENDPOINT}, or it is private "
            f"(then {_AUTHENTICATE})"
        )
    if status in (401, 403):
        return f"{ENDPOINT} denies access to {what} ({status}): {_AUTHENTICATE}"
    return f"{ENDPOINT} answered {status} for {what}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def cache_folder() -> Path:
    return Path(HF_HUB_CACHE)


def fetch_model(name: HubName) -> Path:
    """Return the model's (first) file, downloaded if needed."""
    with _one_line_errors(name):
        return _fetch(name)


def fetch_projector(name: HubName) -> Path | None:
    """Return None if the repository has no projector."""
    with _one_line_errors(HubName(repo=name.repo), what="a projector"):
        file = preferred_projector(_files_of_kind(name.repo, projectors))
        return None if file is None else _fetch(HubName(repo=name.repo, file=file))


def fetch_head(name: HubName) -> Path | None:
    """Return None if no file of the repository has a prediction head."""
    with _one_line_errors(HubName(repo=name.repo), what="a prediction head"):
        file = preferred_head(_files_of_kind(name.repo, heads))
        return None if file is None else _fetch(HubName(repo=name.repo, file=file))


class HubModel(msgspec.Struct, frozen=True):
    files: tuple[HubFile, ...]
    projector: HubFile | None

    @property
    def name(self) -> HubName:
        return HubName(repo=self.files[0].repo, file=self.files[0].path)

    @property
    def all_files(self) -> tuple[HubFile, ...]:
        return self.files if self.projector is None else (*self.files, self.projector)


def ask_hub(name: HubName) -> HubModel:
    """Describe a download."""
    with _one_line_errors(name):
        chosen = model_parts(name.file or _choose(name))
        projector = preferred_projector(projectors(_all_file_names(name.repo)))
        return HubModel(
            tuple(HubFile.look_up(name.repo, file) for file in chosen),
            HubFile.look_up(name.repo, projector) if projector and projector not in chosen else None,
        )


def bring(model: HubModel, on_progress: Callable[[HubFile, int], None], *, keep_free: int = 0) -> Path:
    """Download missing files and return the first. `on_progress` gets the bytes so far; `keep_free` bytes
    stay free."""
    with _one_line_errors(model.name):
        require_space(model.name.repo, model.all_files, keep_free=keep_free)
        paths = []
        for file in model.all_files:
            on_progress(file, file.bytes_here)
            paths.append(_download(file, partial(on_progress, file)))
            on_progress(file, file.size)
        return paths[0]


def remove_cached(name: HubName) -> int:
    """Return the freed bytes. Partial downloads go too, and with the last model the projector and drafting
    files."""
    with _one_line_errors(name):
        files = _cached_files().get(name.repo, [])
        chosen = name.file or preferred(named_models(files), name.quant)
        going = {*model_parts(chosen)} & {*files} if chosen else set()
        folder = repo_folder(name.repo)
        before = _size(folder)
        for unfinished in (folder / "blobs").glob("*.partial"):
            unfinished.unlink(missing_ok=True)
        freed = before - _size(folder)
        if not going and not freed:
            raise StartupError(f"{name} is not in the cache ({HF_HUB_CACHE})")
        if not {*named_models(files)} - going:
            going |= {*projectors(files), *drafting_files(files)}
        return freed + _remove_files(folder, going)


@contextmanager
def _one_line_errors(name: HubName, what: str = "a model") -> Iterator[None]:
    try:
        yield
    except StartupError:
        raise
    except KeyboardInterrupt:
        raise StartupError(
            f"interrupted while fetching {name.file or what} of {name.repo}: the next attempt resumes it"
        ) from None
    except Exception as error:  # network, disk and native code raise errors of every kind
        logger.debug("cannot fetch %s", name, exc_info=True)
        raise StartupError(one_line_error(error, name)) from None


def find_cached(name: HubName) -> Path:
    """Return the model's (first) file without a request to the hub."""
    try:
        file = name.file or preferred(named_models(_cached_files().get(name.repo, [])), name.quant)
        first = _all_cached(name.repo, model_parts(file)) if file else None
    except Exception as error:  # as above
        raise StartupError(one_line_error(error, name)) from None
    if first is None:
        raise StartupError(
            f"{name} is not in the cache ({HF_HUB_CACHE}): "
            f"`openai-cpu-server serve --model {name}` downloads it"
        )
    return first


def all_cached() -> dict[HubName, Path]:
    """Return whole models' (first) files without a request to the hub."""
    return {
        HubName(repo=repo, file=file): first
        for repo, files in _cached_files().items()
        for file in named_models(files)
        if (first := _all_cached(repo, model_parts(file))) is not None
    }


def _fetch(name: HubName) -> Path:
    names = model_parts(name.file or _choose(name))
    try:
        # Fails at once where a download would try again for half a minute.
        files = [HubFile.look_up(name.repo, file) for file in names]
    except RemoteEntryNotFoundError:
        raise
    except Exception as error:
        first = _all_cached(name.repo, names)
        if first is None:
            raise
        logger.warning("%s; using the cached files", one_line_error(error, name))
        return first
    missing = [file for file in files if not file.is_here]
    if missing:
        require_space(name.repo, missing)
        size = in_gb(sum(file.missing_bytes for file in missing))
        logger.info("downloading %s of %s, %s, to %s", files[0].path, name.repo, size, HF_HUB_CACHE)
    paths = [_download(file) for file in files]
    return paths[0]


def _all_cached(repo: str, files: Sequence[str]) -> Path | None:
    paths = [path for file in files if isinstance(path := try_to_load_from_cache(repo, file), str)]
    return Path(paths[0]) if len(paths) == len(files) else None


def _choose(name: HubName) -> str:
    candidates = _files_of_kind(name.repo, named_models, name.quant)
    chosen = preferred(candidates, name.quant)
    if chosen is not None:
        logger.info("taking %s of %d GGUF models in %s", chosen, len(candidates), name.repo)
        return chosen
    if not candidates:
        raise StartupError(f"{name.repo} has no GGUF model: repositories that do are often named ...-GGUF")
    quants = sorted({quantisation(candidate) or candidate for candidate in candidates})
    raise StartupError(f"{name.repo} has no {name.quant}, but {', '.join(quants)}")


def _files_of_kind(
    repo: str, kind: Callable[[Iterable[str]], list[str]], quant: str | None = None
) -> list[str]:
    """Use sufficient cached files if the hub does not answer."""
    try:
        return kind(_all_file_names(repo))
    except Exception:
        cached = kind(_cached_files().get(repo, []))
        if preferred(cached, quant) is None:
            raise
        return cached


def _all_file_names(repo: str) -> list[str]:
    listed = HfApi().model_info(repo, timeout=_TIMEOUT_S).siblings or []
    return [file.rfilename for file in listed if is_file_name(file.rfilename)]


def _cached_files() -> dict[str, list[str]]:
    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return {}
    return {
        cached.repo_id: [
            file.file_path.relative_to(revision.snapshot_path).as_posix()
            for revision in cached.revisions
            if "main" in revision.refs
            for file in revision.files
        ]
        for cached in cache.repos
        if cached.repo_type == "model"
    }


Progress = Callable[[int], None]
"""Callback for the bytes so far. An exception ends the download, and keeps them."""
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
    def look_up(cls, repo: str, path: str) -> HubFile:
        metadata = get_hf_file_metadata(hf_hub_url(repo, path))
        etag, commit = metadata.etag or "", metadata.commit_hash or ""
        # Both become names of files.
        if not (_SHA256.fullmatch(etag) or _SHA1.fullmatch(etag)) or not _SHA1.fullmatch(commit):
            raise StartupError(f"the hub does not report the content hash of {repo}/{path}")
        if metadata.size is None:
            raise StartupError(f"the hub does not report the size of {repo}/{path}")
        return cls(repo=repo, path=path, size=metadata.size, etag=etag, commit=commit)

    @property
    def blob(self) -> Path:
        return repo_folder(self.repo) / "blobs" / self.etag

    @property
    def partial(self) -> Path:
        return self.blob.with_name(f"{self.etag}.partial")

    @property
    def is_here(self) -> bool:
        path = try_to_load_from_cache(self.repo, self.path, revision=self.commit)
        return isinstance(path, str) or self.blob.exists()

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
    missing = sum(file.missing_bytes for file in files)
    cache = Path(HF_HUB_CACHE)
    folder = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    if missing and free < missing + keep_free:
        reserve = f", of which {in_gb(keep_free)} must stay free" if keep_free else ""
        raise StartupError(
            f"not enough disk space for {repo}: it needs {in_gb(missing)}, and {in_gb(free)} are free in "
            f"{cache}{reserve}"
        )


def in_gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


def _download(file: HubFile, progress: Progress | None = None) -> Path:
    """Let a second process wait. Raises what the hub's library raises too. `progress`: None shows a bar."""
    if not file.is_here and file.size <= MAX_HTTP_DOWNLOAD_SIZE:  # larger ones come in another way
        file.blob.parent.mkdir(parents=True, exist_ok=True)
        with _locked_partial(file) as partial_file:
            if partial_file is not None:
                _complete(file, partial_file, progress)
                _check(file)
                file.partial.replace(file.blob)
    return Path(hf_hub_download(file.repo, file.path))


@contextmanager
def _locked_partial(file: HubFile) -> Iterator[BinaryIO | None]:
    """Yield None if another process has just completed it."""
    while True:
        with file.partial.open("ab") as partial_file:
            fcntl.flock(partial_file, fcntl.LOCK_EX)  # it goes with the process
            if file.is_here:
                yield None
                return
            if os.fstat(partial_file.fileno()).st_nlink:  # else the process that had it has deleted it
                yield partial_file
                return


def _complete(file: HubFile, partial_file: BinaryIO, progress: Progress | None) -> None:
    if partial_file.tell() > file.size:
        partial_file.truncate(0)
    at = partial_file.seek(0, os.SEEK_END)
    http_get(
        hf_hub_url(file.repo, file.path),
        cast("BinaryIO", _Bounded(partial_file, file, progress)),
        resume_size=at,
        headers=build_hf_headers(),
        expected_size=file.size,
        displayed_filename=file.path,
        _tqdm_bar=None if progress is None else cast("Any", _NO_BAR),
    )
    partial_file.flush()


_NO_BAR = SimpleNamespace(update=lambda num_bytes: None)


class _Bounded:
    """Rejects more than the announced size, for which the disk was checked."""

    def __init__(self, partial_file: BinaryIO, file: HubFile, progress: Progress | None) -> None:
        self._partial = partial_file
        self._file = file
        self._progress = progress

    def write(self, data: bytes) -> int:
        if self._partial.tell() + len(data) > self._file.size:
            self._partial.truncate(0)
            raise StartupError(
                f"the hub sends more of {self._file.path} than the {in_gb(self._file.size)} that it announced"
            )
        num_written = self._partial.write(data)
        if self._progress is not None:
            self._progress(self._partial.tell())
        return num_written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partial, name)


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
            f"{file.repo}/{file.path} was received with another hash than the hub's ({file.etag}) "
            "and deleted: fetch it again"
        )


def _remove_files(folder: Path, names: set[str]) -> int:
    """Remove files of all revisions and unreferenced content, and return the freed bytes."""
    snapshots = folder / "snapshots"
    links = [
        link
        for link in _links(folder)
        if link.relative_to(snapshots).as_posix().partition("/")[2] in names  # behind the revision
    ]
    before = _size(folder)
    for link in links:
        with link.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StartupError(f"a running server uses {link.name}") from None
    for link in links:
        link.unlink(missing_ok=True)
    left = list(_links(folder))
    if not left:
        shutil.rmtree(folder, ignore_errors=True)
        return before
    contents = {link.resolve() for link in left}
    for blob in (folder / "blobs").glob("*"):
        is_content = blob.suffix not in (".partial", ".incomplete")
        if is_content and blob.resolve() not in contents:
            blob.unlink(missing_ok=True)
    return before - _size(folder)


def _links(folder: Path) -> Iterator[Path]:
    return (link for link in (folder / "snapshots").rglob("*") if link.is_file())


def _size(folder: Path) -> int:
    return sum(
        path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )
