"""Tensors of models and of adapters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

from openai_cpu_server.errors import AdapterFailed, StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, GgufReader, model_files, opened

_PRODUCED = frozenset(
    (
        "f32", "f16", "bf16", "q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "q2_0", "q1_0",
        "q6_K", "q5_K", "q4_K", "q3_K", "q2_K", "tq2_0", "tq1_0", "mxfp4", "nvfp4",
        "iq4_nl", "iq4_xs", "iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
    )
)  # fmt: skip
"""ggml_quantize_chunk ends the process for other types."""


class TensorType(msgspec.Struct, frozen=True):
    """Copy of ggml's table; a test compares the two."""

    number: int
    name: str
    """ggml's name, such as `q4_K`."""
    block_values: int
    block_bytes: int
    is_quantised: bool = True
    needs_importance: bool = False

    @property
    def bits(self) -> float:
        return 8 * self.block_bytes / self.block_values

    @property
    def can_be_made(self) -> bool:
        return self.name in _PRODUCED

    def num_bytes(self, num_values: int) -> int:
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


def tensor_type_named(name: str) -> TensorType:
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
    """ggml's order: the length of a row comes first."""
    type: TensorType
    start: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.type.num_bytes(self.num_values)


def model_tensors(header: GgufHeader) -> list[Tensor]:
    first, *others = model_files(header)
    headers = [header, *map(GgufHeader, others)]
    tensors = [tensor for part in headers for tensor in file_tensors(part)]
    expected = header.get_int("split.tensors.count")
    if expected is not None and others and expected != len(tensors):
        raise StartupError(f"{first} and its other parts have {len(tensors)} tensors instead of {expected}.")
    return tensors


def file_tensors(header: GgufHeader) -> list[Tensor]:
    path = header.path
    with opened(path) as file:
        reader = GgufReader(file, path, position=header.tensors_start)
        described = [_tensor(reader, path) for _ in range(header.num_tensors)]
        alignment = header.get_int("general.alignment") or _DEFAULT_ALIGNMENT
        base = -(-reader.position // alignment) * alignment
        tensors = [
            Tensor(tensor.name, tensor.shape, tensor.type, base + tensor.start) for tensor in described
        ]
        end = max((tensor.start + tensor.num_bytes for tensor in tensors), default=0)
        if end > reader.size:
            raise StartupError(
                f"{path} is truncated or damaged: its tensors end at byte {end:,}, "
                f"the file at {reader.size:,}."
            )
    return tensors


def _tensor(reader: GgufReader, path: Path) -> Tensor:
    """`start` counts from the first byte of the data."""
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


_A, _B = ".lora_a", ".lora_b"
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_FLOATS = frozenset(("f32", "f16", "bf16"))


class _Pair(msgspec.Struct, frozen=True):
    """Change B A of a matrix: A is (rank, columns), B (rows, rank)."""

    name: str
    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        return self.b.shape[0]


class AdapterFile(msgspec.Struct, frozen=True):
    path: Path
    num_pairs: int
    rank: int
    num_bytes: int

    @classmethod
    def open(cls, path: Path, model: GgufHeader) -> AdapterFile:
        """Check an adapter. Raises `AdapterFailed` for all that llama.cpp rejects, crashes on, or ignores."""
        try:
            header = GgufHeader(path)
            _check_kind(header, model)
            tensors = file_tensors(header)
            matrices = {tensor.name: tensor for tensor in model_tensors(model)}
        except StartupError as error:
            raise AdapterFailed(str(error)) from None
        pairs = _pairs(path, tensors)
        for pair in pairs:
            _check_pair(path, pair, matrices)
        return cls(
            path, len(pairs), max(pair.rank for pair in pairs), sum(tensor.num_bytes for tensor in tensors)
        )


def file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(2**20):
                digest.update(chunk)
    except OSError as error:
        raise AdapterFailed(f"Cannot read {path}: {error.strerror}.") from None
    return digest.hexdigest()


def _check_kind(header: GgufHeader, model: GgufHeader) -> None:
    path = header.path
    if header.get_str("general.type") != "adapter":
        raise AdapterFailed(f"{path} is not an adapter: its general.type is not 'adapter'.")
    kind = header.get_str("adapter.type")
    if kind != "lora":
        raise AdapterFailed(f"{path} is not a LoRA adapter: its adapter.type is {kind!r}.")
    if header.architecture != model.architecture:
        raise AdapterFailed(
            f"{path} is for models of the architecture {header.architecture!r}; "
            f"{model.path.name} is {model.architecture!r}."
        )
    if header.has("adapter.lora.alpha") and not header.is_float32("adapter.lora.alpha"):
        raise AdapterFailed(f"{path} is damaged: its adapter.lora.alpha is not a float32.")
    if header.has("adapter.alora.invocation_tokens"):
        raise AdapterFailed(
            f"{path} is an activated LoRA, to be used behind its invocation tokens only; "
            "this server applies adapters to whole requests."
        )


def _pairs(path: Path, tensors: Iterable[Tensor]) -> list[_Pair]:
    halves: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        name, suffix = tensor.name[: -len(_A)], tensor.name[-len(_A) :]
        if suffix not in (_A, _B):
            raise AdapterFailed(
                f"{path} has a tensor {tensor.name!r} that is not part of a LoRA: llama.cpp would not use it."
            )
        halves.setdefault(name, {})[suffix] = tensor
    if not halves:
        raise AdapterFailed(f"{path} has no tensors: it changes nothing.")
    lonely = next((name for name, found in halves.items() if len(found) < 2), None)
    if lonely is not None:
        raise AdapterFailed(f"{path} has only one of the two matrices for {lonely!r}.")
    return [_Pair(name, found[_A], found[_B]) for name, found in halves.items()]


def _check_pair(path: Path, pair: _Pair, matrices: dict[str, Tensor]) -> None:
    changed = matrices.get(pair.name)
    if changed is None:
        raise AdapterFailed(f"{path} changes {pair.name!r}, which the model does not have.")
    if not pair.name.endswith(".weight") or pair.name.endswith("_norm.weight") or len(changed.shape) < 2:
        raise AdapterFailed(f"{path} changes {pair.name!r}, which is not a matrix of a product.")
    if pair.name == _EMBEDDING and _OUTPUT not in matrices:
        raise AdapterFailed(
            f"{path} changes {pair.name!r}, which this model uses for its output too: "
            "llama.cpp cannot compute that."
        )
    for half in (pair.a, pair.b):
        if half.type.name not in _FLOATS and not half.type.is_quantised:
            raise AdapterFailed(
                f"{path}: {half.name!r} is of type {half.type.name}, which is for no product."
            )
    if not _fits(pair, changed):
        raise AdapterFailed(
            f"{path} does not fit the model: {pair.name!r} is {_shown(changed)}, "
            f"and its change is made of {_shown(pair.a)} and {_shown(pair.b)}."
        )


def _fits(pair: _Pair, changed: Tensor) -> bool:
    a, b, columns, rows = pair.a.shape, pair.b.shape, changed.shape[0], changed.shape[1]
    if min(a + b) < 1 or len(a) < 2 or len(b) < 2 or not a[2:] == b[2:] == changed.shape[2:]:
        return False
    if pair.name == _EMBEDDING:  # stored the other way round: rows of A are looked up by token
        return a[0] == b[0] and a[1] == rows and b[1] == columns
    return a[0] == columns and b[1] == rows and a[1] == b[0]


def _shown(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))
