"""The metadata at the front of a GGUF file: with its arrays, which llama.cpp's API does not hand out."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import BinaryIO, Union

from openai_cpu_server.errors import StartupError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_KEPT_ARRAY = 4096
"""Longer arrays are the vocabulary's; the ones about layers are shorter."""

Value = Union[int, float, bool, str, tuple[Union[int, float, bool], ...]]


class GgufHeader:
    """Scalars, strings and short numeric arrays by key. `StartupError` for whatever is not a whole header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open(path) as file:
            self._values = _read(file, path)

    def get_int(self, key: str) -> int | None:
        value = self._values.get(key)
        return value if isinstance(value, int) else None

    def get_str(self, key: str) -> str | None:
        value = self._values.get(key)
        return value if isinstance(value, str) else None

    def get_ints(self, key: str, length: int) -> list[int] | None:
        """An array of `length`, or a scalar repeated."""
        value = self._values.get(key)
        if isinstance(value, tuple):
            return [int(element) for element in value[:length]]
        return [value] * length if isinstance(value, int) else None

    @property
    def architecture(self) -> str:
        return self.get_str("general.architecture") or ""

    def for_architecture(self, key: str) -> str:
        return f"{self.architecture}.{key}"


def _open(path: Path) -> BinaryIO:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise StartupError(f"There is no model file {path}.") from None
    except IsADirectoryError:
        raise StartupError(f"{path} is a directory, not a GGUF file.") from None
    except OSError as error:
        raise StartupError(f"Cannot read {path}: {error.strerror}.") from None
    if file.read(4) != _MAGIC:
        file.close()
        raise StartupError(f"{path} is not a GGUF file.")
    return file


def _read(file: BinaryIO, path: Path) -> dict[str, Value]:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Reader(data).pairs(path)
        except (struct.error, ValueError, OverflowError):
            raise StartupError(f"{path} is truncated or damaged: its header ends too early.") from None


class _Reader:
    """Reads GGUF's basic types (little endian). `struct.error` or `ValueError` where there are none."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(_MAGIC)

    def pairs(self, path: Path) -> dict[str, Value]:
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise StartupError(f"{path} is a GGUF file of version {version}; 2 and 3 can be read.")
        _num_tensors, num_pairs = self._scalar("Q"), int(self._scalar("Q"))
        pairs = (self._pair() for _ in range(num_pairs))
        return {key: value for key, value in pairs if value is not None}

    def _pair(self) -> tuple[str, Value | None]:
        key = self._string()
        return key, self._value(int(self._scalar("I")))

    def _value(self, kind: int) -> Value | None:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(int(self._scalar("I")), int(self._scalar("Q")))
        return self._scalar(_code(kind))

    def _array(self, kind: int, length: int) -> tuple[int | float | bool, ...] | None:
        """None for arrays that nobody here needs."""
        if kind == _STRING:
            self._skip_strings(length)
            return None
        code = _code(kind)
        if length > _LONGEST_KEPT_ARRAY:
            self._skip(length * struct.calcsize("<" + code))
            return None
        return tuple(self._scalar(code) for _ in range(length))

    def _scalar(self, code: str) -> int | float | bool:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value  # type: ignore[no-any-return]

    def _string(self) -> str:
        length = int(self._scalar("Q"))
        start = self._at
        self._skip(length)
        return self._data[start : self._at].decode("utf-8", "replace")

    def _skip(self, num_bytes: int) -> None:
        self._at += num_bytes
        if self._at > len(self._data):
            raise ValueError("end of file")

    def _skip_strings(self, count: int) -> None:
        """A vocabulary has hundreds of thousands of them: a tight loop."""
        data, at, length_of = self._data, self._at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + length_of(data, at)[0]
        self._at = at
        self._skip(0)


def _code(kind: int) -> str:
    code = _SCALARS.get(kind)
    if code is None:
        raise ValueError(f"unknown type {kind}")
    return code


def model_files(header: GgufHeader) -> list[Path]:
    """The model's files. `StartupError` unless all are there and `header` is the first's."""
    count = header.get_int("split.count") or 1
    if count == 1:
        return [header.path]
    index = header.get_int("split.no") or 0
    suffix = f"-{index + 1:05d}-of-{count:05d}.gguf"
    if not header.path.name.endswith(suffix):
        raise StartupError(f"{header.path} is part {index + 1} of {count}; its name must end in {suffix}.")
    stem = str(header.path)[: -len(suffix)]
    parts = [Path(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise StartupError(f"{header.path} is one of {count} parts; missing beside it: {', '.join(missing)}.")
    if index != 0:
        raise StartupError(f"{header.path} is part {index + 1} of {count}; name the first, {parts[0]}.")
    return parts


def total_bytes(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)
