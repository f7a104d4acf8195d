"""The parent's side: what a child is started with and inherits, and what it died of."""

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
"""A word in a name that keeps a variable out, whatever it begins with."""
_SET = {"GGML_NO_BACKTRACE": "1"}
"""An abort would start a debugger in the process, which takes longer than a restart and fills the log."""


def child_environment(inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """`inherited`: None is what this process has."""
    variables = os.environ if inherited is None else inherited
    return {name: value for name, value in variables.items() if _may_pass(name)} | _SET


def keep_shaders_in(folder: Path) -> None:
    """Tell the drivers of this process's GPU where to keep what they compile: without it each start compiles
    it again. Not where they do by themselves: a sandbox closes that, and what an engine writes no other
    program shall run. Call it before a driver is loaded."""
    for name in ("CUDA_CACHE_PATH", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"):
        os.environ[name] = str(folder)


def library_folders() -> list[str]:
    """Where the dynamic linker looks besides the system's folders."""
    return [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]


def driver_manifests() -> list[Path]:
    """Files, or folders of them, that Vulkan's loader is told of besides those where it looks by itself."""
    told = (
        os.environ.get(name, "") for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
    )
    return [Path(path) for paths in told for path in paths.split(os.pathsep) if path]


def _may_pass(name: str) -> bool:
    is_known = name in _NAMES or name.startswith(_BEGINNINGS)
    return is_known and _TELLS_A_SECRET.search(name.upper()) is None


class SpawnOptions(TypedDict):
    """Arguments of `subprocess.Popen` and of `asyncio.create_subprocess_exec`."""

    pass_fds: tuple[int, ...]
    stdin: int
    start_new_session: bool
    env: dict[str, str]


def spawn_options(theirs: socket.socket) -> SpawnOptions:
    """For a child that gets this end of a socket pair; its command names the file descriptor.

    It gets a session of its own: a terminal's Ctrl-C is for the parent, from the child's first moment on; and
    of the environment what native code needs, for it has no business with keys.
    """
    return SpawnOptions(
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=child_environment(),
    )


def death_cause(exit_status: int | None) -> str:
    """One of few words, for counters: the signal's name, `exit_1` and the like, `unknown`. A negative status
    is a signal's number."""
    if exit_status is None:
        return "unknown"
    if exit_status >= 0:
        return f"exit_{exit_status}"
    try:
        return signal.Signals(-exit_status).name
    except ValueError:  # real-time signals have no name
        return f"signal_{-exit_status}"
