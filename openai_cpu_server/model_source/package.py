"""A package of the package index that carries a model. Nothing of it is imported: such packages belong to
other programs, and want those."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError


class Package(msgspec.Struct, frozen=True):
    name: str
    """The name in the package index."""
    module: str

    def folder(self) -> Path:
        """Where it is installed. Raises StartupError that says how to get it."""
        found = importlib.util.find_spec(self.module)
        folders = found.submodule_search_locations if found is not None else None
        folder = next(map(Path, folders or ()), None)
        if folder is None:
            raise StartupError(f"the package {self.name} is not installed (to get it: {self._command()})")
        return folder

    def broken(self, why: str) -> StartupError:
        """What to raise where its content is no use."""
        mended = self._command("--ignore-installed ")
        return StartupError(f"the package {self.name} is broken: {why} (to mend it: {mended})")

    def _command(self, option: str = "") -> str:
        return f"{sys.executable} -m pip install --no-deps {option}{self.name}"
