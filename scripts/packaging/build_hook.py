"""Compiles the kernels when pip builds the package, where there is a compiler; the package works without."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parents[2]))

from openai_cpu_server.kernels.build import LIBRARY, BuildFailed, build_if_changed


class KernelsHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called for wheels, those of editable installations too; a source distribution holds the sources."""
        if self.target_name != "wheel":
            return
        try:
            build_if_changed(os.environ.get("CXX", ""))
        except (BuildFailed, OSError) as error:
            self.app.display_warning(f"kernels were not built, the server works without them: {error}")
            return
        build_data["artifacts"].append(str(LIBRARY.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
