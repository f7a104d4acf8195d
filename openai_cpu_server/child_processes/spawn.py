"""Parent's side: what a child inherits, and why it ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

_NAMES = {
    # Where things are, and whose.
    *("HOME", "LOGNAME", "PATH", "PWD", "TEMP", "TMP", "TMPDIR", "USER"),
    *("CONDA_PREFIX", "NIX_LD", "NIX_LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    # How text is written.
    *("COLUMNS", "FORCE_COLOR", "LANG", "LANGUAGE", "LOCPATH", "NO_COLOR", "TERM", "TZ", "TZDIR"),
    # Allocators, and what Rust says when it breaks.
    *("GLIBC_TUNABLES", "MALLOC_CONF", "RUST_BACKTRACE", "_RJEM_MALLOC_CONF"),
}
_BEGINNINGS = (
    *("ASAN_", "LSAN_", "TSAN_", "UBSAN_"),
    *("BLIS_", "GGML_", "GOMP_", "KMP_", "LIBOMP_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_"),
    # Which GPU, and its driver.
    *("CUDA_", "GALLIUM_", "HIP_", "HSA_", "LIBGL_", "LP_", "MESA_", "NVIDIA_", "ROCR_", "VK_"),
    *("COVERAGE_", "COV_", "DYLD_", "LC_", "LD_", "PYTHON", "TCMALLOC_"),
)
_TELLS_A_SECRET = re.compile("AUTH|CREDENTIAL|KEY|PASS(?!IVE)|SECRET|TOKEN")
"""Words that exclude a variable, whatever it begins with."""
_SET = {"GGML_NO_BACKTRACE": "1"}
"""A backtrace at an abort would start a debugger, which takes longer than a restart and fills the log."""


def child_environment(inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    variables = os.environ if inherited is None else inherited
    passed = {
        name: value
        for name, value in variables.items()
        if (name in _NAMES or name.startswith(_BEGINNINGS)) and not _TELLS_A_SECRET.search(name.upper())
    }
    return passed | _SET


def keep_shaders_in(folder: Path) -> None:
    """Set the cache folder of GPU drivers, before one is loaded. The sandbox closes their usual folders, and
    no other program may run what an engine writes."""
    for name in ("CUDA_CACHE_PATH", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"):
        os.environ[name] = str(folder)


def library_folders() -> list[str]:
    return [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]


def driver_manifests() -> list[Path]:
    names = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
    lists = (os.environ.get(name, "") for name in names)
    return [Path(path) for paths in lists for path in paths.split(os.pathsep) if path]


class SpawnOptions(TypedDict):
    pass_fds: tuple[int, ...]
    stdin: int
    start_new_session: bool
    env: dict[str, str]


def spawn_options(theirs: socket.socket) -> SpawnOptions:
    """Options for a child with this socket, a session of its own (Ctrl-C is for the parent), and no
    secrets."""
    return SpawnOptions(
        pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True, env=child_environment()
    )


def death_cause(exit_status: int | None) -> str:
    """Return a word for counters: the signal's name, `exit_1` and the like, or `unknown`."""
    if exit_status is None:
        return "unknown"
    if exit_status >= 0:
        return f"exit_{exit_status}"
    try:
        return signal.Signals(-exit_status).name
    except ValueError:  # real-time signals have no name
        return f"signal_{-exit_status}"
