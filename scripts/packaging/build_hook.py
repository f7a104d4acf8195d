"""Compiles the kernels when pip builds the package, where there is a compiler; the package works without."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parents[2]))

from openai_cpu_server.kernels.build import LIBRARY, BuildFailed, build_if_changed, build_portable


class KernelsHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called for wheels, those of editable installations too; a source distribution holds the sources.

        `KERNELS_CPU=portable` puts a library for each level of CPU into the wheel, or ends the build:
        pip shows no warnings, and other machines would be slow without a word.
        """
        if self.target_name != "wheel":
            return
        cpu = os.environ.get("KERNELS_CPU") or "native"
        try:
            libraries = _built(cpu, os.environ.get("CXX", ""))
        except (BuildFailed, OSError) as error:
            if cpu != "native":
                self.app.abort(f"kernels were not built: {error}")
            self.app.display_warning(f"kernels were not built, the server works without them: {error}")
            return
        build_data["artifacts"].extend(str(library.relative_to(self.root)) for library in libraries)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _built(cpu: str, compiler: str) -> list[Path]:
    """The libraries that belong into the wheel. Raises `BuildFailed`."""
    if cpu == "portable":
        return build_portable(compiler)
    if cpu != "native":
        raise BuildFailed(f"KERNELS_CPU is native or portable, not {cpu}")
    build_if_changed(compiler)
    return [LIBRARY]
