"""New types of a model's tensors, and checks that they are possible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.gguf.quantize import Importance, QuantizeFailed, QuantizePlan, TypeFallback
from openai_cpu_server.llama.gguf.tensors import (
    Tensor,
    TensorType,
    file_tensors,
    model_tensors,
    tensor_type_named,
)

_PADDING = 32
"""Alignment of tensors in bytes."""


class SourceModel(msgspec.Struct, frozen=True):
    """Model to convert. All its parts exist and have their full length."""

    path: Path
    files: list[Path]
    tensors: list[Tensor]

    @classmethod
    def read(cls, path: Path) -> SourceModel:
        """Read the source. Raises StartupError."""
        header = GgufHeader(path)
        tensors = model_tensors(header)
        if not header.architecture or not tensors:
            raise StartupError(f"{path} is no model: there are no weights in it")
        return cls(path, model_files(header), tensors)

    @property
    def file_bytes(self) -> int:
        return total_bytes(self.files)


class Conversion(msgspec.Struct, frozen=True):
    source: SourceModel
    tensors: list[tuple[Tensor, TensorType]]
    """Tensors with their new types, in the order of conversion."""
    fallbacks: tuple[TypeFallback, ...]
    needs_importance: bool

    @classmethod
    def of(cls, source: SourceModel, plan: QuantizePlan) -> Conversion:
        tensors = {tensor.name: tensor for tensor in source.tensors}
        kinds = {tensor.type.name: tensor.type for tensor in source.tensors}
        assert sorted(tensors) == sorted(each.name for each in plan.tensors), "the log was read wrongly"
        pairs = [
            (tensors[each.name], kinds.get(each.target) or tensor_type_named(each.target))
            for each in plan.tensors
        ]
        return cls(source, pairs, plan.fallbacks, plan.needs_importance)

    @property
    def tensor_bytes(self) -> int:
        return sum(kind.num_bytes(tensor.num_values) for tensor, kind in self.tensors)

    @property
    def file_bytes(self) -> int:
        """Approximate size of the output, with headers as long as the source's."""
        headers = self.source.file_bytes - sum(tensor.num_bytes for tensor in self.source.tensors)
        return max(0, headers) + self.tensor_bytes + _PADDING * len(self.tensors)

    def require_possible(self, importance: Importance | None, *, allows_requantising: bool) -> None:
        """Check for faults that llama.cpp would notice late, or die of. Raises StartupError."""
        if self.needs_importance:
            raise StartupError("this type needs an importance matrix: --imatrix FILE (of llama-imatrix)")
        for tensor, kind in self.tensors:
            if kind == tensor.type:
                continue
            if tensor.type.is_quantised and not allows_requantising:
                raise StartupError(
                    f"{self.source.path} is quantised already ({tensor.type.name}): to do it again loses more"
                    " than to start from f16 or f32; --allow-requantize does it"
                )
            _require_fit(tensor, kind)
            if kind.needs_importance and (importance is None or tensor.name not in importance.columns):
                raise StartupError(f"{tensor.name} cannot be {kind.name} without an importance matrix")

    def require_made(self, files: Sequence[Path]) -> None:
        """Check that the files are the whole output, because llama.cpp may not notice a full disk. Raises
        QuantizeFailed."""
        try:
            made = {each.name: each.type for file in files for each in file_tensors(GgufHeader(file))}
        except StartupError as error:
            raise QuantizeFailed(f"what was written is not whole: {error}") from None
        if made != {tensor.name: kind for tensor, kind in self.tensors}:
            raise QuantizeFailed("what was written has other tensors than were planned")


def _require_fit(tensor: Tensor, kind: TensorType) -> None:
    """Types that users choose have no fallback."""
    if tensor.shape[0] % kind.block_values:
        raise StartupError(
            f"{tensor.name} cannot be {kind.name}: its rows of {tensor.shape[0]:,} values are no multiple"
            f" of {kind.block_values}"
        )
