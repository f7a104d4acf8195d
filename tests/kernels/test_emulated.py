"""The code for x86 CPUs that have more than AVX2, on any that has AVX2: SIMDe computes their instructions."""

from __future__ import annotations

import ctypes
import platform
import shutil
from pathlib import Path

import pytest

from openai_cpu_server.kernels.build import LEVELS, build_library, cpu_flags
from openai_cpu_server.kernels.library import KernelLibrary, obstacle
from tests.kernels.library import KERNELS, failures_with

_SIMDE = Path("/usr/include/simde/x86/avx512.h")
_EMULATES = {
    "avx512vnni": ("-DEMULATES_512", "-DEMULATES_VNNI"),
    "avx512": ("-DEMULATES_512",),
    "avxvnni": ("-DEMULATES_VNNI",),
}
_FLAGS = (
    *LEVELS["x86_64"]["avx2"],
    "-O1",  # compiles in a fifth of the time
    "-Wno-psabi",
    "-include",
    str(Path(__file__).with_name("emulated.hpp")),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", _EMULATES)
def test_kernels_compute_right_on_other_cpus(level: str, tmp_path: Path) -> None:
    if why_not := _missing():
        pytest.skip(why_not)
    library = tmp_path / f"{level}.so"
    build_library(target=library, cpu=[*_FLAGS, *_EMULATES[level]])
    assert KernelLibrary(ctypes.CDLL(str(library))).instruction_set == level
    failures = failures_with(library)
    assert not failures, failures


def _missing() -> str | None:
    if platform.machine() != "x86_64" or "avx2" not in cpu_flags() or not shutil.which("c++"):
        return "it takes AVX2 and a compiler"
    if not _SIMDE.exists():
        return "there are no headers of SIMDe (Debian: apt install libsimde-dev)"
    return obstacle(KERNELS)
