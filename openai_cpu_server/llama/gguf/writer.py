"""Writes GGUF files: metadata and tensors of plain floats."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Union

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TYPES = {np.dtype("<f4"): 0, np.dtype("<f2"): 1}
"""ggml's numbers of the types of tensors."""

NewValue = Union[bool, int, float, str, Sequence[str], Sequence[int]]
NewTensor = Union[npt.NDArray[np.float32], npt.NDArray[np.float16]]


def write_gguf(file: BinaryIO, values: Mapping[str, NewValue], tensors: Mapping[str, NewTensor]) -> None:
    """Write a whole file: `values` by key, `tensors` by name, each of shape (rows, values of a row). Integers
    become 32 bits wide: without a sign alone, with one in arrays. Raises OSError."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(_string(key) + _value(value) for key, value in values.items())
    file.write(_padded(head + _descriptions(tensors)))
    for tensor in tensors.values():
        file.write(_padded(np.ascontiguousarray(tensor).tobytes()))


def _descriptions(tensors: Mapping[str, NewTensor]) -> bytes:
    described, start = b"", 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]  # ggml counts from the innermost dimension
        described += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        described += struct.pack("<IQ", _TYPES[tensor.dtype], start)
        start += _aligned(tensor.nbytes)
    return described


def _value(value: NewValue) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    return struct.pack("<I", _ARRAY) + _elements(value)


def _elements(array: Sequence[str] | Sequence[int]) -> bytes:
    texts = [element for element in array if isinstance(element, str)]
    if texts:
        return struct.pack("<IQ", _STRING, len(array)) + b"".join(map(_string, texts))
    return struct.pack(f"<IQ{len(array)}i", _INT32, len(array), *array)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _padded(data: bytes) -> bytes:
    return data + bytes(_aligned(len(data)) - len(data))
