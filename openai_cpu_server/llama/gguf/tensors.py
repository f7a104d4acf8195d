"""The tensors of GGUF files: their types, shapes and places."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, GgufReader, model_files, opened

_PRODUCED = frozenset(
    (
        "f32", "f16", "bf16", "q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "q2_0", "q1_0",
        "q6_K", "q5_K", "q4_K", "q3_K", "q2_K", "tq2_0", "tq1_0", "mxfp4", "nvfp4",
        "iq4_nl", "iq4_xs", "iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
    )
)  # fmt: skip
"""The types that ggml_quantize_chunk makes; it ends the process for any other."""


class TensorType(msgspec.Struct, frozen=True):
    """A row of a table that stands here for the API process, which reads headers and loads no native library.
    A test compares it with ggml's own."""

    number: int
    name: str
    """ggml's name, such as `q4_K`."""
    block_values: int
    block_bytes: int
    is_quantised: bool = True
    needs_importance: bool = False
    """Whether this type needs an importance matrix."""

    @property
    def bits(self) -> float:
        """The bits of one value."""
        return 8 * self.block_bytes / self.block_values

    @property
    def can_be_made(self) -> bool:
        return self.name in _PRODUCED

    def num_bytes(self, num_values: int) -> int:
        """The bytes of `num_values` values in whole blocks."""
        return num_values // self.block_values * self.block_bytes


TENSOR_TYPES = {
    each.number: each
    for each in (
        TensorType(0, "f32", 1, 4, is_quantised=False),
        TensorType(1, "f16", 1, 2, is_quantised=False),
        TensorType(2, "q4_0", 32, 18),
        TensorType(3, "q4_1", 32, 20),
        TensorType(6, "q5_0", 32, 22),
        TensorType(7, "q5_1", 32, 24),
        TensorType(8, "q8_0", 32, 34),
        TensorType(9, "q8_1", 32, 36),
        TensorType(10, "q2_K", 256, 84),
        TensorType(11, "q3_K", 256, 110),
        TensorType(12, "q4_K", 256, 144),
        TensorType(13, "q5_K", 256, 176),
        TensorType(14, "q6_K", 256, 210),
        TensorType(15, "q8_K", 256, 292),
        TensorType(16, "iq2_xxs", 256, 66, needs_importance=True),
        TensorType(17, "iq2_xs", 256, 74, needs_importance=True),
        TensorType(18, "iq3_xxs", 256, 98),
        TensorType(19, "iq1_s", 256, 50, needs_importance=True),
        TensorType(20, "iq4_nl", 32, 18),
        TensorType(21, "iq3_s", 256, 110),
        TensorType(22, "iq2_s", 256, 82),
        TensorType(23, "iq4_xs", 256, 136),
        TensorType(24, "i8", 1, 1, is_quantised=False),
        TensorType(25, "i16", 1, 2, is_quantised=False),
        TensorType(26, "i32", 1, 4, is_quantised=False),
        TensorType(27, "i64", 1, 8, is_quantised=False),
        TensorType(28, "f64", 1, 8, is_quantised=False),
        TensorType(29, "iq1_m", 256, 56),
        TensorType(30, "bf16", 1, 2, is_quantised=False),
        TensorType(34, "tq1_0", 256, 54),
        TensorType(35, "tq2_0", 256, 66),
        TensorType(39, "mxfp4", 32, 17),
        TensorType(40, "nvfp4", 64, 36),
        TensorType(41, "q1_0", 128, 18),
        TensorType(42, "q2_0", 64, 18),
    )
}
"""By ggml's number."""


def tensor_type_named(name: str) -> TensorType:
    """Find a type; case does not matter. Raises `StartupError` for types that cannot be made."""
    made = {kind.name.lower(): kind for kind in TENSOR_TYPES.values() if kind.can_be_made}
    found = made.get(name.lower())
    if found is None:
        raise StartupError(f"there is no tensor type {name!r}; there are {', '.join(made)}")
    return found


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
