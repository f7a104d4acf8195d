"""The tensors of a GGUF file, from its header alone: names, shapes, types, sizes."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files
from openai_cpu_server.llama.gguf.reader import GgufReader, opened
from openai_cpu_server.llama.gguf.tensor_types import TENSOR_TYPES, TensorType

_DEFAULT_ALIGNMENT = 32
_DIMENSIONS_MAX = 4


class Tensor(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    """The dimensions in ggml's order: the values of a row come first."""
    type: TensorType
    start: int
    """Byte of its file at which its data begin."""

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.type.num_bytes(self.num_values)


def model_tensors(header: GgufHeader) -> list[Tensor]:
    """The tensors of all parts.
    Raises `StartupError` if a part is missing, damaged, or shorter than its tensors."""
    first, *others = model_files(header)
    headers = [header, *map(GgufHeader, others)]
    tensors = [tensor for part in headers for tensor in file_tensors(part)]
    expected = header.get_int("split.tensors.count")
    if expected is not None and others and expected != len(tensors):
        raise StartupError(f"{first} and its other parts have {len(tensors)} tensors instead of {expected}.")
    return tensors


def file_tensors(header: GgufHeader) -> list[Tensor]:
    """The tensors of this one file. Raises `StartupError` if it is damaged or shorter than its tensors."""
    path = header.path
    with opened(path) as file:
        reader = GgufReader(file, path, position=header.tensors_start)
        described = [_tensor(reader, path) for _ in range(header.num_tensors)]
        alignment = header.get_int("general.alignment") or _DEFAULT_ALIGNMENT
        base = -(-reader.position // alignment) * alignment
        tensors = [
            Tensor(tensor.name, tensor.shape, tensor.type, base + tensor.start) for tensor in described
        ]
        _require_all(path, tensors, reader.size)
    return tensors


def _tensor(reader: GgufReader, path: Path) -> Tensor:
    """Read one description. `start` still counts from the first byte of the data."""
    name, num_dimensions = reader.string(), int(reader.scalar("I"))
    if not 1 <= num_dimensions <= _DIMENSIONS_MAX:
        raise StartupError(f"{path} is damaged: tensor {name!r} has {num_dimensions} dimensions.")
    shape = tuple(int(reader.scalar("Q")) for _ in range(num_dimensions))
    number = int(reader.scalar("I"))
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise StartupError(
            f"{path}: tensor {name!r} is of type {number}, which llama.cpp here does not know."
        )
    if shape[0] % kind.block_values:
        raise StartupError(
            f"{path} is damaged: rows of tensor {name!r} have {shape[0]} values, "
            f"but {kind.name} stores {kind.block_values} together."
        )
    return Tensor(name, shape, kind, int(reader.scalar("Q")))


def _require_all(path: Path, tensors: list[Tensor], file_bytes: int) -> None:
    end = max((tensor.start + tensor.num_bytes for tensor in tensors), default=0)
    if end > file_bytes:
        raise StartupError(
            f"{path} is truncated or damaged: its tensors end at byte {end:,}, the file at {file_bytes:,}."
        )
