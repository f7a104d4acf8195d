"""What the system says: the user's folders, and what of the environment is other programs'."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from openai_cpu_server.errors import StartupError
from openai_cpu_server.storage.private_files import private_folder

_NAME = "openai-cpu-server"


def user_cache_dir() -> Path:
    """For what can be made again. Without a home it is in the folder for temporary files, and nobody else
    can have filled it. Raises StartupError."""
    base = _base("XDG_CACHE_HOME", ".cache")
    if base is not None:
        return base / _NAME
    try:
        return private_folder(Path(tempfile.gettempdir()) / f"{_NAME}-{os.geteuid()}")
    except OSError as error:
        raise StartupError(f"there is no folder for caches: {error}") from None


def kept_cache_dir() -> Path | None:
    """The same, for what is of use to later processes; None: the user has no home, and what is made in its
    place may be gone, or be memory."""
    return None if _base("XDG_CACHE_HOME", ".cache") is None else user_cache_dir()


def user_data_dir() -> Path:
    """For what is to stay. Raises StartupError where the user has no home."""
    base = _base("XDG_DATA_HOME", ".local/share")
    if base is None:
        raise StartupError(f"user {os.geteuid()} has no home directory: set HOME or XDG_DATA_HOME")
    return base / _NAME


def expanded(path: Path | str) -> Path:
    """With the home in place of `~`. Raises StartupError where there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise StartupError(f"cannot look for {path}: there is no such home directory") from None


def require_utf8(path: Path | str, origin: str = "the name") -> None:
    """Raises StartupError for what the system has given that no other process and no client can be told."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise StartupError(f"{origin} {str(path)!a} is not UTF-8") from None


def _base(variable: str, below_home: str) -> Path | None:
    """A relative path in the variable counts as none, as its specification says."""
    named = Path(os.environ.get(variable, ""))
    try:
        base = named if named.is_absolute() else Path.home() / below_home
    except RuntimeError:
        return None
    require_utf8(base)
    return base


def foreign_settings() -> Mapping[str, str]:
    """The environment, for what other programs such as Ray have set up there."""
    return os.environ


def tell_others(settings: Mapping[str, str]) -> None:
    """Lets processes of this one inherit settings of other programs, where a user has not said otherwise."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""glibc reads it when a process starts: large allocations lie in huge pages, where the system lets them."""
_NO_BLAS_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's: the engine multiplies no matrices by it, and it starts with threads that spin at first."""


def tune_engines() -> None:
    """Lets engines of this process inherit what makes steps fast, where a user has not said otherwise.

    Compute threads spin for longer than the pause between two operations of a step, so no step gets slower,
    but for less than the pause between two steps: then a core is free for whoever reads the last step's
    tokens. If they spun on, that reader would take a core from the thread that makes the next step (measured:
    1.4 ms of a step with 16 streams).

    Cells lie in huge pages (measured: decoding at 1 B takes 3 to 5 % less time, resident memory 3 % more).

    numpy has no threads (measured with two cores: the start takes 0.44 s of CPU time instead of 0.54).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    tell_others(HUGE_PAGES | _NO_BLAS_THREADS)
