"""Importance matrices: what llama-imatrix writes, in its two formats."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import Tensor, file_tensors

_MAGIC = b"GGUF"
_SUMS, _COUNTS = ".in_sum2", ".counts"

Floats = npt.NDArray[np.float32]


class Importance(NamedTuple):
    """How much each column of a matrix matters: the mean square of the values that it is multiplied with."""

    path: Path
    columns: dict[str, Floats]
    """The values by tensor. Those of experts follow one another."""
    num_chunks: int | None
    """The number of texts that it was computed from."""


def read_importance(path: Path) -> Importance:
    """Read a matrix in either format. Raises `StartupError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from None
    found = _from_gguf(path, data) if data.startswith(_MAGIC) else _from_legacy(path, data)
    if not found.columns:
        raise StartupError(f"{path} is no importance matrix: it names no tensors")
    if not all(np.isfinite(values).all() for values in found.columns.values()):
        raise StartupError(f"{path} has values that are no numbers")
    return found


def _from_gguf(path: Path, data: bytes) -> Importance:
    header = GgufHeader(path)
    tensors = {tensor.name: tensor for tensor in file_tensors(header)}
    columns = {
        name: _means(_floats(path, data, sums), _floats(path, data, counts))
        for name, sums, counts in _pairs(path, tensors)
    }
    return Importance(path, columns, header.get_int("imatrix.chunk_count"))


def _pairs(path: Path, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The name of each tensor, its sums and its counts.
    Each expert has one count and the same number of sums."""
    for sums in tensors.values():
        if not sums.name.endswith(_SUMS):
            continue
        name = sums.name.removesuffix(_SUMS)
        counts = tensors.get(name + _COUNTS)
        if counts is None:
            raise StartupError(f"{path} is damaged: it has no counts for {name}")
        if not counts.num_values or sums.num_values % counts.num_values:
            raise StartupError(
                f"{path} is damaged: it has {sums.num_values} sums and {counts.num_values} counts for {name}"
            )
        yield name, sums, counts


def _floats(path: Path, data: bytes, tensor: Tensor) -> Floats:
    if tensor.type.name != "f32":
        raise StartupError(f"{path} is no importance matrix: {tensor.name} is of type {tensor.type.name}")
    return np.frombuffer(data, dtype="<f4", count=tensor.num_values, offset=tensor.start)


def _means(sums: Floats, counts: Floats) -> Floats:
    """Divide the sums of each expert by its count. An expert with count 0 gets 1."""
    per_expert = sums.reshape(len(counts), -1)
    seen = counts[:, np.newaxis]
    means = np.divide(per_expert, seen, out=np.ones_like(per_expert), where=seen > 0)
    return means.astype(np.float32).ravel()


def _from_legacy(path: Path, data: bytes) -> Importance:
    """Read entries of name, calls and values. Newer files have the number of chunks behind them."""
    reader = _LegacyReader(data)
    try:
        columns = dict(reader.entry() for _ in range(reader.number()))
        return Importance(path, columns, reader.number() if reader.has_more else None)
    except (struct.error, ValueError):
        raise StartupError(f"{path} is no importance matrix, or a damaged one") from None


class _LegacyReader:
    """Reads the old format. Raises `struct.error` or `ValueError` where the data are something else."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def number(self) -> int:
        (value,) = struct.unpack_from("<i", self._data, self._at)
        self._at += 4
        if value < 0:
            raise ValueError("negative")
        return int(value)

    def entry(self) -> tuple[str, Floats]:
        length = self.number()
        name = self._taken(length).decode("utf-8")
        calls, num_values = self.number(), self.number()
        values = np.frombuffer(self._taken(4 * num_values), dtype="<f4")
        return name, (values / calls if calls else values).astype(np.float32)

    def _taken(self, num_bytes: int) -> bytes:
        start, self._at = self._at, self._at + num_bytes
        if self._at > len(self._data):
            raise ValueError("end of file")
        return self._data[start : self._at]
