"""Compiles the kernels for pip if there is a compiler. The package works without."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parents[2]))

from openai_cpu_server.kernels.build import LIBRARY, BuildFailed, build_if_changed, build_portable


class KernelsHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run for wheels, also of editable installations. `KERNELS_CPU=portable` builds a library for each
        level of CPU, or fails, because pip shows no warnings and other machines would be slow. `KERNELS_ARCH`
        selects an architecture for which `CXX` compiles."""
        if self.target_name != "wheel":
            return
        cpu, machine = os.environ.get("KERNELS_CPU") or "native", os.environ.get("KERNELS_ARCH", "")
        try:
            libraries = _built(cpu, machine, os.environ.get("CXX", ""))
        except (BuildFailed, OSError) as error:
            if cpu != "native":
                self.app.abort(f"kernels were not built: {error}")
            self.app.display_warning(f"kernels were not built, the server works without them: {error}")
            return
        build_data["artifacts"].extend(str(library.relative_to(self.root)) for library in libraries)
        build_data["pure_python"] = False
        # ctypes loads them: any Python 3 will do.
        platform = f"linux-{machine}" if machine else sysconfig.get_platform()
        build_data["tag"] = f"py3-none-{platform.replace('-', '_').replace('.', '_')}"


def _built(cpu: str, machine: str, compiler: str) -> list[Path]:
    if cpu == "portable":
        return build_portable(compiler, machine=machine)
    if cpu != "native" or machine:
        raise BuildFailed(
            f"KERNELS_CPU is native or portable, not {cpu}; only the latter goes with KERNELS_ARCH"
        )
    build_if_changed(compiler)
    return [LIBRARY]
