"""Code for other CPUs: SIMDe computes instructions of newer x86 CPUs, and an emulator runs code for ARM."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
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


_TEST = Path(__file__).with_name("scalar_check.cpp")
_NATIVE = Path(__file__).parents[2] / "openai_cpu_server" / "kernels" / "native"
_SOURCES = (
    "amx",
    "attention",
    "attention_node",
    "attention_plan",
    "cells",
    "delta_net",
    "elementwise",
    "products",
    "short_convolution",
    "state_scan",
    "tile_products",
)
_ARM_FLAGS = ("-std=c++17", "-O2", "-ffp-contract=fast", "-fno-math-errno", "-static", f"-I{_NATIVE}")
_TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64")


@pytest.mark.slow
def test_neon_computes_the_same_as_plain_loops(tmp_path: Path) -> None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"NEON needs {', '.join(missing)} (Debian: apt install g++-aarch64-linux-gnu qemu-user)")
    compiler, emulator = _TOOLS
    program = tmp_path / "check"
    sources = [str(_NATIVE / f"{name}.cpp") for name in _SOURCES]
    arguments = [compiler, *_ARM_FLAGS, "-march=armv8.2-a+dotprod", "-o", str(program), str(_TEST), *sources]
    subprocess.run(arguments, check=True, capture_output=True)
    done = subprocess.run([emulator, "-cpu", "max", str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "neon-dotprod: 0 differ\n")
