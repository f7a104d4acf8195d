"""C++ library of kernels."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Collection
from pathlib import Path

from openai_cpu_server.kernels.build import LEVELS, LIBRARY, level_library

GGML_OF = "0.3.36"
"""Version of llama-cpp-python whose ggml `native/ggml_api.hpp` describes."""


class Kernel(enum.IntEnum):
    """Order of `native/front.cpp`."""

    ATTENTION = 0
    PRODUCTS = 1
    RECURRENT = 2
    ELEMENTWISE = 3
    TILES = 4
    ATTENTION_TILES = 5
    RECURRENT_TILES = 6


class KernelLibrary:
    """Switches hold for the process, and may be changed only while no graph is computed."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._handle = handle
        handle.ocs_suits_this_cpu.restype = ctypes.c_bool
        handle.ocs_instruction_set.restype = ctypes.c_char_p
        handle.ocs_num_done.restype = ctypes.c_long
        handle.ocs_multiplies.restype = ctypes.c_bool
        handle.ocs_why_no_tiles.restype = ctypes.c_char_p
        handle.ocs_round_attention.argtypes = [ctypes.c_bool]

    @property
    def suits_this_cpu(self) -> bool:
        return bool(self._handle.ocs_suits_this_cpu())

    @property
    def instruction_set(self) -> str:
        return str(self._handle.ocs_instruction_set().decode())

    def multiplies(self, weight_type: int) -> bool:
        return bool(self._handle.ocs_multiplies(weight_type))

    @property
    def why_no_tiles(self) -> str | None:
        """Return why this process may not use AMX, which the library then emulates, or None."""
        reason = self._handle.ocs_why_no_tiles()
        return reason and str(reason.decode())

    def use_tiles_from(self, weight_type: int, rows: int | None) -> None:
        """Multiply weights of this type by tiles from `rows` on; 0: the usual number, None: never."""
        self._handle.ocs_use_tiles_from(weight_type, -1 if rows is None else rows)

    def num_done(self, kernel: Kernel) -> int:
        return int(self._handle.ocs_num_done(kernel))

    def switch_on(self, kernel: Kernel) -> None:
        self._handle.ocs_switch_on(kernel)

    def switch_off(self, kernel: Kernel) -> None:
        self._handle.ocs_switch_off(kernel)

    def round_attention(self, on: bool) -> None:
        """Score many rows with 16-bit integers, fast; last bits then depend on the number of rows."""
        self._handle.ocs_round_attention(on)

    def reset(self) -> None:
        self.round_attention(False)
        for kernel in Kernel:
            self.switch_off(kernel)
        self.leave(())
        for weight_type in range(64):
            self.use_tiles_from(weight_type, 0)

    def leave(self, weight_types: Collection[int]) -> None:
        self._handle.ocs_leave(ctypes.c_uint64(sum(1 << number for number in weight_types)))


def library_path(native: Path = LIBRARY) -> Path:
    """Return the library compiled here, else the best of a portable build."""
    existing = [path for path in _libraries(native) if path.exists()]
    return next((path for path in existing if obstacle(path) is None), existing[-1] if existing else native)


def _libraries(native: Path) -> list[Path]:
    return [native, *(level_library(level, native) for level in LEVELS.get(platform.machine(), {}))]


def digest(native: Path = LIBRARY) -> str:
    """Return "" without a library."""
    contents = [path.read_bytes() for path in _libraries(native) if path.exists()]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16] if contents else ""


@functools.cache
def bindings_version() -> str | None:
    """Version without importing llama-cpp-python, which takes 16 ms."""
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("llama-cpp-python")
    return None


def obstacle(path: Path | None = None) -> str | None:
    """Return why the library cannot be used here, or None. Loads no ggml."""
    path = path or library_path()
    if sys.platform != "linux":
        return "the library works on Linux only"
    if not path.exists():
        return "the library was not built because no C++ compiler was found"
    if bindings_version() != GGML_OF:
        return f"the library is made for llama-cpp-python {GGML_OF}, not {bindings_version()}"
    try:
        suits = KernelLibrary(ctypes.CDLL(str(path))).suits_this_cpu
    except (OSError, AttributeError) as error:
        return f"the library cannot be loaded: {error}"
    return None if suits else "the library was compiled for another CPU"


def put_in_front(path: Path | None = None) -> None:
    """Load the library before llama_cpp is imported, because the first library with a name wins."""
    path = path or library_path()
    if obstacle(path) is None:
        ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL)
