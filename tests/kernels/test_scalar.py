"""The kernels as compiled for ARM, under an emulator, against plain loops."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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
_FLAGS = ("-std=c++17", "-O2", "-ffp-contract=fast", "-fno-math-errno", "-static", f"-I{_NATIVE}")
_TOOLS = ("aarch64-linux-gnu-g++", "qemu-aarch64")


@pytest.mark.slow
def test_neon_computes_what_plain_loops_do(tmp_path: Path) -> None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"NEON needs {', '.join(missing)} (Debian: apt install g++-aarch64-linux-gnu qemu-user)")
    compiler, emulator = _TOOLS
    program = tmp_path / "check"
    sources = [str(_NATIVE / f"{name}.cpp") for name in _SOURCES]
    arguments = [compiler, *_FLAGS, "-march=armv8.2-a+dotprod", "-o", str(program), str(_TEST), *sources]
    subprocess.run(arguments, check=True, capture_output=True)
    done = subprocess.run([emulator, "-cpu", "max", str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "neon-dotprod: 0 differ\n")
