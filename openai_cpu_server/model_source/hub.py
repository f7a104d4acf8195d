"""Describes what went wrong with the hub, in one line that says what to do."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from huggingface_hub import (
    CacheNotFound,
    HfApi,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    scan_cache_dir,
    try_to_load_from_cache,
)
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
    """A line for a refusal by the hub, which could be reached."""
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
    """Where downloaded files lie."""
    return Path(HF_HUB_CACHE)


def fetch(name: HubName) -> Path:
    """The model's (first) file in the cache. It is downloaded if it is not there. Raises StartupError."""
    try:
        return _fetch(name)
    except StartupError:
        raise
    except KeyboardInterrupt:
        raise StartupError(f"interrupted while fetching {name.file or 'a model'} of {name.repo}") from None
    except Exception as error:  # network, disk and native code of somebody else's, with errors of every kind
        logger.debug("cannot fetch %s", name, exc_info=True)
        raise StartupError(one_line(error, name)) from None


def fetch_projector(name: HubName) -> Path | None:
    """What the models of the repository see pictures with, in the cache. It is downloaded if it is not there.
    None: the repository has nothing of the kind. Raises StartupError."""
    try:
        file = preferred_projector(_projectors(name.repo))
        return None if file is None else _fetch(HubName(repo=name.repo, file=file))
    except KeyboardInterrupt:
        raise StartupError(f"interrupted while fetching a projector of {name.repo}") from None
    except Exception as error:  # as above
        logger.debug("cannot fetch a projector of %s", name, exc_info=True)
        raise StartupError(one_line(error, HubName(repo=name.repo))) from None


def find_cached(name: HubName) -> Path:
    """The model's (first) file in the cache. The hub is not asked. Raises StartupError if it is not there."""
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
    """The whole models in the cache by repository and file, as a download would find them; the (first) file
    of each. The hub is not asked."""
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
        get_hf_file_metadata(hf_hub_url(name.repo, files[0]))
    except RemoteEntryNotFoundError:
        raise
    except Exception as error:
        return _cached_instead(name, files, error)
    return _download(name.repo, files)


def _cached_instead(name: HubName, files: Sequence[str], error: Exception) -> Path:
    first = _all_cached(name.repo, files)
    if first is None:
        raise error
    logger.warning("%s; using what is in the cache", one_line(error, name))
    return first


def _all_cached(repo: str, files: Sequence[str]) -> Path | None:
    """The first of these files; None: not all of them are in the cache."""
    paths = [path for file in files if isinstance(path := try_to_load_from_cache(repo, file), str)]
    return Path(paths[0]) if len(paths) == len(files) else None


def _download(repo: str, files: Sequence[str]) -> Path:
    plans = [hf_hub_download(repo, file, dry_run=True) for file in files]
    missing = [plan for plan in plans if plan.will_download]
    if missing:
        num_bytes = sum(plan.file_size or 0 for plan in missing)
        _require_space(repo, num_bytes)
        logger.info("downloading %s of %s, %s, to %s", files[0], repo, _gb(num_bytes), HF_HUB_CACHE)
    paths = [Path(hf_hub_download(repo, file)) for file in files]
    return paths[0]


def _require_space(repo: str, num_bytes: int) -> None:
    cache = Path(HF_HUB_CACHE)
    folder = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise StartupError(
            f"not enough disk space for {repo}: {_gb(num_bytes)} are needed, {_gb(free)} free in {cache}"
        )


def _choose(name: HubName) -> str:
    """The file to take if the user named only a repository."""
    candidates = _candidates(name)
    chosen = preferred(candidates, name.quant)
    if chosen is None:
        raise StartupError(_no_choice(name, candidates))
    logger.info("taking %s of %d GGUF models in %s", chosen, len(candidates), name.repo)
    return chosen


def _candidates(name: HubName) -> list[str]:
    """The models of a repository;
    if the hub cannot be reached, those in the cache, if one of them will do."""
    try:
        return models(_all_file_names(name.repo))
    except Exception:
        cached = models(_cached_file_names(name.repo))
        if preferred(cached, name.quant) is None:
            raise
        return cached


def _projectors(repo: str) -> list[str]:
    """As `_candidates`."""
    try:
        return projectors(_all_file_names(repo))
    except Exception:
        cached = projectors(_cached_file_names(repo))
        if not cached:
            raise
        return cached


def _all_file_names(repo: str) -> list[str]:
    """What the hub says that the repository has."""
    return [file.rfilename for file in HfApi().model_info(repo, timeout=_TIMEOUT_S).siblings or []]


def _no_choice(name: HubName, candidates: Sequence[str]) -> str:
    if not candidates:
        return f"{name.repo} has no GGUF model"
    quants = sorted({quantisation(candidate) or candidate for candidate in candidates})
    return f"{name.repo} has no {name.quant}, but {', '.join(quants)}"


def _cached_file_names(repo: str) -> list[str]:
    """The cached files of the revision that was current at the last download."""
    return _cached_files().get(repo, [])


def _cached_files() -> dict[str, list[str]]:
    """By repository: the cached files of the revision that was current at the last download."""
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


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
