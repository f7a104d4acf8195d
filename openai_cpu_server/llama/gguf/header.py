"""The metadata at the front of a GGUF file, and the files that are parts of one model."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.reader import FLOAT32, GgufReader, SkippedArray, opened

_MOST_LAYERS = 512
"""llama.cpp's LLAMA_MAX_LAYERS."""
_MOST_PARTS = 99_999
"""Their numbers have five digits."""


class GgufHeader:
    """Scalars, strings and short numeric arrays by key.
    Raises `StartupError` for whatever is not a whole header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with opened(path) as file:
            reader = GgufReader(file, path)
            self._values = reader.pairs()
        self._kinds = reader.kinds
        self.num_tensors = reader.num_tensors
        self.tensors_start = reader.position
        """Byte of the file at which the descriptions of the tensors begin."""
        self._require_count(self.for_architecture("block_count"), at_most=_MOST_LAYERS)
        self._require_count("split.count", at_most=_MOST_PARTS)

    def _require_count(self, key: str, *, at_most: int) -> None:
        """Lists of that length are made."""
        count = self.get_int(key) or 0
        if not 0 <= count <= at_most:
            raise StartupError(f"{self.path} is damaged: {key} is {count:,}, at most {at_most:,} can be.")

    def has(self, key: str) -> bool:
        return key in self._values

    def is_float32(self, key: str) -> bool:
        """Whether the value is stored as float32: llama.cpp ends the process where it expects that."""
        return self._kinds.get(key) == FLOAT32

    def get_int(self, key: str) -> int | None:
        value = self._values.get(key)
        return value if isinstance(value, int) else None

    def get_float(self, key: str) -> float | None:
        value = self._values.get(key)
        return float(value) if isinstance(value, (int, float)) else None

    def get_bool(self, key: str) -> bool | None:
        value = self._values.get(key)
        return value if isinstance(value, bool) else None

    def get_str(self, key: str) -> str | None:
        value = self._values.get(key)
        return value if isinstance(value, str) else None

    def get_ints(self, key: str, length: int) -> list[int] | None:
        """The first `length` elements of an array, or a scalar repeated; None if it is neither."""
        value = self._values.get(key)
        if isinstance(value, tuple):
            return [element for element in value[:length] if isinstance(element, int)]
        return [value] * min(length, _MOST_LAYERS) if isinstance(value, int) else None

    def array_length(self, key: str) -> int | None:
        value = self._values.get(key)
        if isinstance(value, SkippedArray):
            return value.length
        return len(value) if isinstance(value, tuple) else None

    def get_strings(
        self, key: str, indices: Collection[int] | None = None, *, errors: str = "replace"
    ) -> dict[int, str]:
        """Elements of an array of strings by index, read from the file now; None: all. {} if it is none.

        `errors`: what is made of bytes that are no UTF-8, as for `bytes.decode`.
        """
        array = self._values.get(key)
        if not isinstance(array, SkippedArray) or not array.holds_strings:
            return {}
        wanted = set(range(array.length) if indices is None else indices)
        with opened(self.path) as file:
            reader = GgufReader(file, self.path, position=array.start)
            strings = enumerate(reader.strings(min(array.length, max(wanted, default=-1) + 1), errors))
            return {index: text for index, text in strings if index in wanted}

    @property
    def architecture(self) -> str:
        return self.get_str("general.architecture") or ""

    def for_architecture(self, key: str) -> str:
        return f"{self.architecture}.{key}"


def model_files(header: GgufHeader) -> list[Path]:
    """The files of the model. Raises `StartupError` unless all are there and `header` is the first file's."""
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


def files_by_name(path: Path) -> list[Path]:
    """The files that a model of this name may have, present or not, without a look into any."""
    found = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if found is None:
        return [path]
    stem, count = found.groups()
    return [path.with_name(f"{stem}-{number:05d}-of-{count}.gguf") for number in range(1, int(count) + 1)]


def total_bytes(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)
