"""Models of the hub, with errors in one line that says what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import msgspec
from huggingface_hub import CacheNotFound, HfApi, scan_cache_dir, try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE
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
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.hub_files import (
    HubFile,
    abandoned,
    fetched,
    in_gb,
    removed,
    require_space,
)
from openai_cpu_server.model_source.names import (
    HubName,
    models,
    parts,
    preferred,
    preferred_projector,
    projectors,
    quantisation,
)

# The hub's library has changed its HTTP library twice; this is the base of its errors, whichever it is.


_BEFORE_FILE = "/resolve/main/"
_AUTHENTICATE = "set HF_TOKEN to a token that may read it"


def one_line(error: Exception, name: HubName) -> str:
    what = f"{name.repo}/{name.file}" if name.file else name.repo
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set, and {what} is not in the cache ({HF_HUB_CACHE})"
    if isinstance(error, LocalEntryNotFoundError):
        return f"the connection to {ENDPOINT} broke, and {what} is not in the cache ({HF_HUB_CACHE})"
    if isinstance(error, HfHubHTTPError):
        return _answer(error, name, what)
    if isinstance(error, HFValidationError):
        return f"{name.repo} cannot be a repository: {_first_line(error)}"
    if isinstance(error, TransportError):
        return f"the connection to {ENDPOINT} for {what} failed: {_first_line(error)}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot store {what} in {HF_HUB_CACHE}: {error.strerror}"
    return f"cannot fetch {what}: {_first_line(error)}"


def _answer(error: HfHubHTTPError, name: HubName, what: str) -> str:
    status = error.response.status_code
    if isinstance(error, EntryNotFoundError):
        return f"{name.repo} has no file {unquote(str(error.response.url)).partition(_BEFORE_FILE)[2]}"
    if isinstance(error, GatedRepoError):
        return f"{name.repo} is gated: accept its terms on the hub, then {_AUTHENTICATE}"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no repository {name.repo} on {ENDPOINT}, or it is private (then {_AUTHENTICATE})"
    if status in (401, 403):
        return f"{ENDPOINT} denies access to {what} ({status}): {_AUTHENTICATE}"
    return f"{ENDPOINT} answered {status} for {what}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0


def cache_folder() -> Path:
    return Path(HF_HUB_CACHE)


def fetch(name: HubName) -> Path:
    """Return the model's (first) file, downloaded if needed. Raises StartupError."""
    with _told_in_one_line(name):
        return _fetch(name)


def fetch_projector(name: HubName) -> Path | None:
    """Return the projector, or None if the repository has none. Raises StartupError."""
    with _told_in_one_line(HubName(repo=name.repo), what="a projector"):
        file = preferred_projector(_projectors(name.repo))
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
    """Describe a download. Raises StartupError."""
    with _told_in_one_line(name):
        chosen = parts(name.file or _choose(name))
        projector = preferred_projector(projectors(_all_file_names(name.repo)))
        return HubModel(
            tuple(HubFile.asked(name.repo, file) for file in chosen),
            HubFile.asked(name.repo, projector) if projector and projector not in chosen else None,
        )


def bring(model: HubModel, on_progress: Callable[[HubFile, int], None], *, keep_free: int = 0) -> Path:
    """Download missing files and return the first. Raises StartupError. `on_progress` gets the bytes so
    far; `keep_free` stay free on the disk."""
    with _told_in_one_line(model.name):
        require_space(model.name.repo, model.all_files, keep_free=keep_free)
        paths = []
        for file in model.all_files:
            on_progress(file, file.bytes_here)
            paths.append(fetched(file, partial(on_progress, file)))
            on_progress(file, file.size)
        return paths[0]


def remove(name: HubName) -> int:
    """Remove a cached model, partial downloads, and the projector with its last model. Returns the freed
    bytes. Raises StartupError, also if a server uses it."""
    with _told_in_one_line(name):
        files = _cached_file_names(name.repo)
        chosen = name.file or preferred(models(files), name.quant)
        going = {*parts(chosen)} & {*files} if chosen else set()
        freed = abandoned(name.repo)
        if not going and not freed:
            raise StartupError(f"{name} is not in the cache ({HF_HUB_CACHE})")
        if not {*models(files)} - going:
            going |= {*projectors(files)}
        return freed + removed(name.repo, going)


@contextmanager
def _told_in_one_line(name: HubName, what: str = "a model") -> Iterator[None]:
    try:
        yield
    except StartupError:
        raise
    except KeyboardInterrupt:
        raise StartupError(
            f"interrupted while fetching {name.file or what} of {name.repo}: the next try goes on from there"
        ) from None
    except Exception as error:  # network, disk and native code of somebody else's, with errors of every kind
        logger.debug("cannot fetch %s", name, exc_info=True)
        raise StartupError(one_line(error, name)) from None


def find_cached(name: HubName) -> Path:
    """Return the model's (first) file without asking the hub. Raises StartupError if it is not cached."""
    try:
        file = name.file or preferred(models(_cached_file_names(name.repo)), name.quant)
        first = _all_cached(name.repo, parts(file)) if file else None
    except Exception as error:  # as above
        raise StartupError(one_line(error, name)) from None
    if first is None:
        raise StartupError(
            f"{name} is not in the cache ({HF_HUB_CACHE}): "
            f"`openai-cpu-server serve --model {name}` downloads it"
        )
    return first


def all_cached() -> dict[HubName, Path]:
    """Return the (first) files of whole models, without asking the hub."""
    found = {}
    for repo, files in _cached_files().items():
        for file in models(files):
            if (first := _all_cached(repo, parts(file))) is not None:
                found[HubName(repo=repo, file=file)] = first
    return found


def _fetch(name: HubName) -> Path:
    files = parts(name.file or _choose(name))
    try:
        # Fails at once where a download would try again for half a minute.
        asked = [HubFile.asked(name.repo, file) for file in files]
    except RemoteEntryNotFoundError:
        raise
    except Exception as error:
        return _cached_instead(name, files, error)
    return _download(name.repo, asked)


def _cached_instead(name: HubName, files: Sequence[str], error: Exception) -> Path:
    first = _all_cached(name.repo, files)
    if first is None:
        raise error
    logger.warning("%s; using what is in the cache", one_line(error, name))
    return first


def _all_cached(repo: str, files: Sequence[str]) -> Path | None:
    paths = [path for file in files if isinstance(path := try_to_load_from_cache(repo, file), str)]
    return Path(paths[0]) if len(paths) == len(files) else None


def _download(repo: str, files: Sequence[HubFile]) -> Path:
    missing = [file for file in files if not file.is_here]
    if missing:
        require_space(repo, missing)
        size = in_gb(sum(file.missing_bytes for file in missing))
        logger.info("downloading %s of %s, %s, to %s", files[0].path, repo, size, HF_HUB_CACHE)
    paths = [fetched(file) for file in files]
    return paths[0]


def _choose(name: HubName) -> str:
    candidates = _candidates(name)
    chosen = preferred(candidates, name.quant)
    if chosen is None:
        raise StartupError(_no_choice(name, candidates))
    logger.info("taking %s of %d GGUF models in %s", chosen, len(candidates), name.repo)
    return chosen


def _candidates(name: HubName) -> list[str]:
    try:
        return models(_all_file_names(name.repo))
    except Exception:
        cached = models(_cached_file_names(name.repo))
        if preferred(cached, name.quant) is None:
            raise
        return cached


def _projectors(repo: str) -> list[str]:
    try:
        return projectors(_all_file_names(repo))
    except Exception:
        cached = projectors(_cached_file_names(repo))
        if not cached:
            raise
        return cached


def _all_file_names(repo: str) -> list[str]:
    return [file.rfilename for file in HfApi().model_info(repo, timeout=_TIMEOUT_S).siblings or []]


def _no_choice(name: HubName, candidates: Sequence[str]) -> str:
    if not candidates:
        return f"{name.repo} has no GGUF model"
    quants = sorted({quantisation(candidate) or candidate for candidate in candidates})
    return f"{name.repo} has no {name.quant}, but {', '.join(quants)}"


def _cached_file_names(repo: str) -> list[str]:
    return _cached_files().get(repo, [])


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
