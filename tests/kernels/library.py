"""The library of kernels that tests run with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from openai_cpu_server.kernels.build import LIBRARY
from openai_cpu_server.kernels.graphs import Computing, Floats
from openai_cpu_server.kernels.library import Kernel, KernelLibrary

ROOT = Path(__file__).parents[2]
_VARIABLE = "KERNELS_UNDER_TEST"
"""Environment variable that names another library than the installed one."""
KERNELS = Path(os.environ.get(_VARIABLE, LIBRARY))


def failures_with(library: Path) -> str:
    """Run the tests of all kernels with another library in a subprocess. Return its output if one fails."""
    tests = [str(Path(__file__).with_name(f"test_{kernel.name.lower()}.py")) for kernel in Kernel]
    command = [sys.executable, "-m", "pytest", "-q", *tests]
    environment = {**os.environ, _VARIABLE: str(library)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def compute_with(library: KernelLibrary, kernel: Kernel, compute: Computing, threads: int = 2) -> Floats:
    num_done = library.num_done(kernel)
    library.switch_on(kernel)
    found = compute(threads)
    library.switch_off(kernel)
    assert library.num_done(kernel) > num_done
    return found
