"""Compiles the kernels, for a portable wheel once per CPU level: `python -m openai_cpu_server.kernels.build`.

Imports only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCES = _FOLDER / "native"
LIBRARY = _FOLDER / "libocs_kernels.so"
NATIVE = ("-march=native",)
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx512fp16": (
            *("-march=x86-64-v4", "-mavx512vnni", "-mavx512vbmi", "-mavx512bf16", "-mavx512fp16"),
            *("-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        ),
        "avx512vnni": ("-march=x86-64-v4", "-mavx512vnni"),
        "avx512": ("-march=x86-64-v4",),
        "avxvnni": ("-march=x86-64-v3", "-mavxvnni"),
        "avx2": ("-march=x86-64-v3",),
    },
    "aarch64": {"neon-dotprod": ("-march=armv8.2-a+dotprod",), "neon": ("-march=armv8-a",)},
}
"""Architecture -> CPU levels (code paths of `native/cpu.hpp`), best first -> compiler flags."""
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Wno-uninitialized",  # GCC 12 says so of its own AVX-512 headers
    "-Wno-maybe-uninitialized",
)
_CPU_INFO = Path("/proc/cpuinfo")


class BuildFailed(Exception):
    """The message is one line."""


def build_library(compiler: str = "", *, target: Path = LIBRARY, cpu: Sequence[str] = NATIVE) -> None:
    """Compile the library, even if it exists. Raises `BuildFailed`.

    `compiler`: a command line, or "" for the machine's. `cpu`: flags of the instruction set.
    """
    if sys.platform != "linux":
        raise BuildFailed("they work on Linux only")
    command = [*_compiler(compiler), *_FLAGS, *cpu]
    partial = target.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        sources = sorted(_SOURCES.glob("*.cpp"), key=lambda source: source.stat().st_size, reverse=True)
        objects = [str(Path(folder, source.stem).with_suffix(".o")) for source in sources]
        compiled = [
            pool.submit(_run, [*command, "-c", str(source), "-o", to])
            for source, to in zip(sources, objects, strict=True)
        ]
        try:
            for one in compiled:
                one.result()
            _run([*command, "-shared", "-o", str(partial), *objects, "-ldl"])
            partial.replace(target)  # a process that has the old one mapped keeps it
        finally:
            partial.unlink(missing_ok=True)


def _run(command: Sequence[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if run.returncode != 0:
        lines = [line for line in run.stderr.splitlines() if line.strip()] or ["it said nothing"]
        error = next((line for line in lines if "error" in line), lines[0])
        raise BuildFailed(f"{command[0]} failed: {error}")


def build_portable(compiler: str = "", *, machine: str = "", beside: Path = LIBRARY) -> list[Path]:
    """Compile a library for each level. Raises `BuildFailed`. `machine`: "" for this machine's
    architecture."""
    machine = machine or platform.machine()
    levels = LEVELS.get(machine)
    if levels is None:
        raise BuildFailed(f"no levels of {machine} are known")
    for level, flags in levels.items():
        build_if_changed(compiler, target=level_library(level, beside), cpu=flags)
    return [level_library(level, beside) for level in levels]


def level_library(level: str, beside: Path = LIBRARY) -> Path:
    return beside.with_suffix(f".{level}.so")


def build_if_changed(compiler: str = "", *, target: Path = LIBRARY, cpu: Sequence[str] = NATIVE) -> bool:
    """Return False if sources, compiler and CPU are the same. Raises `BuildFailed` after deleting an outdated
    library."""
    key, key_file = _key(compiler), target.with_suffix(".key")
    if target.exists() and key_file.exists() and key_file.read_text() == key:
        return False
    target.unlink(missing_ok=True)
    build_library(compiler, target=target, cpu=cpu)
    key_file.write_text(key)
    return True


def _compiler(command_line: str) -> list[str]:
    candidates = [shlex.split(command_line)] if command_line.strip() else [["c++"], ["g++"], ["clang++"]]
    for command in candidates:
        if shutil.which(command[0]):
            return command
    raise BuildFailed("no C++ compiler was found (Debian: apt install g++)")


def _key(compiler: str) -> str:
    command = _compiler(compiler)
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace").stdout
    digest = hashlib.sha256(repr((command, version, _FLAGS, platform.machine(), cpu_flags())).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def cpu_flags() -> str:
    try:
        lines = _CPU_INFO.read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def main() -> int:
    """Return 0 even after a failure, because the server works without the library."""
    try:
        if build_if_changed(" ".join(sys.argv[1:])):
            sys.stderr.write("setup: kernels compiled for this CPU\n")
    except (BuildFailed, OSError) as error:
        sys.stderr.write(f"setup: kernels were not built, the server works without them: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
