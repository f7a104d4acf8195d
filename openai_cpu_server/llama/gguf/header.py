"""Metadata of a GGUF file, and the kind of model."""

from __future__ import annotations

import difflib
import os
import re
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Union

import msgspec

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
FLOAT32 = 6
"""GGUF's type number."""
_LONGEST_READ_ARRAY = 4096
_WINDOW = 2**20
_LENGTH = struct.Struct("<Q")
_MOST_PAIRS = 1 << 16
_MOST_STRINGS = 1 << 23
_LONGEST_KEY = (1 << 16) - 1
_LONGEST_STRING = 1 << 26
"""Far above any model's. A reader that trusts damaged counts reads the whole file."""


class SkippedArray(msgspec.Struct, frozen=True):
    """Array of strings, or a long one, left in the file."""

    kind: int
    """GGUF's type number of the elements."""
    length: int
    start: int


_Value = Union[int, float, bool, str, tuple[Union[int, float, bool], ...], SkippedArray]


def opened(path: Path) -> BinaryIO:
    """Open a GGUF file behind its magic, unmapped, because a truncation would kill the process."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise StartupError(f"The model file {path} does not exist.") from None
    except IsADirectoryError:
        raise StartupError(f"{path} is a directory, not a GGUF file.") from None
    except OSError as error:
        raise StartupError(f"Cannot read {path}: {error.strerror}.") from None
    if file.read(4) != _MAGIC:
        file.close()
        raise StartupError(f"{path} is not a GGUF file.")
    return file


class GgufReader:
    def __init__(self, file: BinaryIO, path: Path, position: int = len(_MAGIC)) -> None:
        self._file = file
        self._path = path
        self._window = b""
        self._window_start = 0
        self.position = position
        self.size = os.fstat(file.fileno()).st_size
        self.num_tensors = 0
        """Set by `pairs`."""
        self.kinds: dict[str, int] = {}
        """Type numbers, set by `pairs`."""

    def pairs(self) -> dict[str, _Value]:
        version = int(self.scalar("I"))
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise StartupError(f"{self._path} is for big-endian machines.")
        if version not in _VERSIONS:
            raise StartupError(f"{self._path} is a GGUF file of version {version}; 2 and 3 can be read.")
        self.num_tensors, num_pairs = int(self.scalar("Q")), int(self.scalar("Q"))
        self._require(num_pairs, at_most=_MOST_PAIRS)
        values: dict[str, _Value] = {}
        for _ in range(num_pairs):
            key = self.string(at_most=_LONGEST_KEY)
            self.kinds[key] = kind = int(self.scalar("I"))
            if kind == _STRING:
                values[key] = self.string()
            elif kind == _ARRAY:
                values[key] = self._array(int(self.scalar("I")), int(self.scalar("Q")))
            else:
                values[key] = self.scalar(self._code(kind))
        return values

    def scalar(self, code: str) -> int | float | bool:
        """`code`: format of `struct`."""
        return self._unpacked(code)[0]

    def _unpacked(self, form: str) -> tuple[int | float | bool, ...]:
        size = struct.calcsize("<" + form)
        at = self._reach(size)
        self.position += size
        return struct.unpack_from("<" + form, self._window, at)

    def string(self, errors: str = "replace", *, at_most: int = _LONGEST_STRING) -> str:
        length = int(self.scalar("Q"))
        self._require(length, at_most=at_most)
        at = self._reach(length)
        self.position += length
        return self._window[at : at + length].decode("utf-8", errors)

    def strings(self, count: int, errors: str) -> Iterator[str]:
        length_of = _LENGTH.unpack_from
        while count:
            at = self._reach(_LENGTH.size)
            data, last = self._window, len(self._window) - _LENGTH.size
            while count and at <= last:
                end = at + _LENGTH.size + length_of(data, at)[0]
                if end > len(data):
                    break
                yield data[at + _LENGTH.size : end].decode("utf-8", errors)
                at = end
                count -= 1
            self.position = self._window_start + at
            if count and at <= last:  # its end is outside the window
                yield self.string(errors)
                count -= 1

    def _array(self, kind: int, length: int) -> _Value:
        skipped = SkippedArray(kind, length, self.position)
        if kind == _STRING:
            self._skip_strings(length)
            return skipped
        code = self._code(kind)
        if length > _LONGEST_READ_ARRAY:
            self._skip(length * struct.calcsize("<" + code))
            return skipped
        return self._unpacked(f"{length}{code}")

    def _code(self, kind: int) -> str:
        code = _SCALARS.get(kind)
        if code is None:
            raise self._damage()
        return code

    def _reach(self, num_bytes: int) -> int:
        at = self.position - self._window_start
        if not 0 <= at <= len(self._window) - num_bytes:
            self._skip(num_bytes)
            self.position -= num_bytes
            self._window = os.pread(self._file.fileno(), max(num_bytes, _WINDOW), self.position)
            self._window_start, at = self.position, 0
            if len(self._window) < num_bytes:
                raise self._damage()
        return at

    def _skip(self, num_bytes: int) -> None:
        self.position += num_bytes
        if self.position > self.size:
            raise self._damage()

    def _skip_strings(self, count: int) -> None:
        self._require(count, at_most=_MOST_STRINGS)
        length_of = _LENGTH.unpack_from
        while count:
            at = self._reach(_LENGTH.size)
            data, last = self._window, len(self._window) - _LENGTH.size
            while count and at <= last:
                at += _LENGTH.size + length_of(data, at)[0]
                count -= 1
            self.position = self._window_start + at
            self._skip(0)

    def _require(self, count: int, *, at_most: int) -> None:
        if count > at_most:
            raise StartupError(f"{self._path} is damaged: its header counts {count:,}, at most {at_most:,}.")

    def _damage(self) -> StartupError:
        return StartupError(f"{self._path} is truncated or damaged: its header ends too early.")


_MOST_LAYERS, _MOST_EXPERTS = 512, 1024
"""LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS, beyond which llama.cpp ends the process."""
_MOST_PARTS = 99_999
_MOST_TOKENS = (1 << 31) - 1
"""The size of the file does not limit the context."""
_WIDTHS = (
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_swa",
    "attention.value_length",
    "attention.value_length_swa",
)
_ANY_WIDTH = 1 << 16
"""Harmless even for a file without weights."""


class GgufHeader:
    def __init__(self, path: Path) -> None:
        self.path = path
        with opened(path) as file:
            reader = GgufReader(file, path)
            self._values = reader.pairs()
        self._kinds = reader.kinds
        self.num_tensors = reader.num_tensors
        self.tensors_start = reader.position
        # All parts, because the first may have no tensors.
        num_bytes = total_bytes([file for file in files_by_name(path) if file.is_file()])
        self.most_values = max(8 * num_bytes, _ANY_WIDTH)
        """Upper bound of the model's values: no type takes less than a bit for one."""
        self._require_counts()

    def _require_counts(self) -> None:
        """Memory is sized by these numbers, and llama.cpp ends the process for some wrong ones."""
        key = self.for_architecture
        self._require_count("split.count", at_most=_MOST_PARTS)
        self._require_count(key("block_count"), at_least=1, at_most=_MOST_LAYERS)
        layers = self.get_int(key("block_count")) or _MOST_LAYERS
        for name in ("nextn_predict_layers", "attention.shared_kv_layers"):
            self._require_count(key(name), at_most=layers)
        self._require_count(key("full_attention_interval"), at_most=_MOST_LAYERS)
        self._require_count(key("expert_count"), at_most=_MOST_EXPERTS)
        self._require_count(key("expert_used_count"), at_most=self.get_int(key("expert_count")) or 0)
        self._require_count(key("context_length"), at_most=_MOST_TOKENS)
        for name in _WIDTHS:
            self._require_count(key(name), at_most=self.most_values)

    def _require_count(self, key: str, *, at_least: int = 0, at_most: int) -> None:
        for count in self.get_ints(key, _MOST_LAYERS if self.array_length(key) else 1) or ():
            if not at_least <= count <= at_most:
                raise StartupError(
                    f"{self.path} is damaged: {key} is {count:,}, "
                    f"{f'at most {at_most:,}' if count > at_most else f'at least {at_least:,}'} can be."
                )

    def has(self, key: str) -> bool:
        return key in self._values

    def is_float32(self, key: str) -> bool:
        """llama.cpp ends the process for other types."""
        return self._kinds.get(key) == FLOAT32

    def get_int(self, key: str) -> int | None:
        value = self._values.get(key)
        return value if isinstance(value, int) else None

    def arch_int(self, key: str) -> int | None:
        return self.get_int(self.for_architecture(key))

    def arch_ints(self, key: str, length: int) -> list[int] | None:
        return self.get_ints(self.for_architecture(key), length)

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
        """Return an array, or a scalar repeated; None if it is neither."""
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
        """Read strings of an array by index, or all; {} if it is not such an array.

        `errors`: treatment of invalid UTF-8.
        """
        array = self._values.get(key)
        if not isinstance(array, SkippedArray) or array.kind != _STRING:
            return {}
        count = array.length if indices is None else min(array.length, max(indices, default=-1) + 1)
        with opened(self.path) as file:
            strings = enumerate(GgufReader(file, self.path, position=array.start).strings(count, errors))
            return dict(strings) if indices is None else {i: text for i, text in strings if i in indices}

    @property
    def architecture(self) -> str:
        return self.get_str("general.architecture") or ""

    def for_architecture(self, key: str) -> str:
        return f"{self.architecture}.{key}"


def model_files(header: GgufHeader) -> list[Path]:
    """`header`: of the first file."""
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
    found = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if found is None:
        return [path]
    stem, count = found.groups()
    return [path.with_name(f"{stem}-{number:05d}-of-{count}.gguf") for number in range(1, int(count) + 1)]


def total_bytes(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)


class FileType(msgspec.Struct, frozen=True):
    name: str
    number: int
    """LLAMA_FTYPE."""
    base: str
    """Tensor type of most weights, or "" for a copy."""
    remark: str = ""
    needs_importance: bool = False


_MIXED = "some tensors in more bits"
_COPY = "copy"

FILE_TYPES = {
    kind.name: kind
    for kind in (
        FileType("f32", 0, "f32"),
        FileType("bf16", 32, "bf16"),
        FileType("f16", 1, "f16"),
        FileType("q8_0", 7, "q8_0", "hardly distinguishable from f16"),
        FileType("q6_k", 18, "q6_K"),
        FileType("q5_k_m", 17, "q5_K", _MIXED),
        FileType("q5_k_s", 16, "q5_K"),
        FileType("q5_1", 9, "q5_1"),
        FileType("q5_0", 8, "q5_0"),
        FileType("q4_k_m", 15, "q4_K", f"{_MIXED}; the usual choice"),
        FileType("q4_k_s", 14, "q4_K"),
        FileType("q4_1", 3, "q4_1"),
        FileType("q4_0", 2, "q4_0"),
        FileType("iq4_nl", 25, "iq4_nl"),
        FileType("iq4_xs", 30, "iq4_xs"),
        FileType("mxfp4_moe", 38, "mxfp4", "mxfp4 for experts, q8_0 for the rest"),
        FileType("q3_k_l", 13, "q3_K", _MIXED),
        FileType("q3_k_m", 12, "q3_K", _MIXED),
        FileType("q3_k_s", 11, "q3_K"),
        FileType("iq3_m", 27, "iq3_s", _MIXED),
        FileType("iq3_s", 26, "iq3_s"),
        FileType("iq3_xs", 22, "iq3_s", "some tensors in fewer bits", needs_importance=True),
        FileType("iq3_xxs", 23, "iq3_xxs", needs_importance=True),
        FileType("q2_k", 10, "q2_K", _MIXED),
        FileType("q2_k_s", 21, "q2_K", needs_importance=True),
        FileType("iq2_m", 29, "iq2_s", _MIXED, needs_importance=True),
        FileType("iq2_s", 28, "iq2_xs", _MIXED, needs_importance=True),
        FileType("iq2_xs", 20, "iq2_xs", needs_importance=True),
        FileType("iq2_xxs", 19, "iq2_xxs", needs_importance=True),
        FileType("q2_0", 41, "q2_0", "for models trained so"),
        FileType("tq2_0", 37, "tq2_0", "for ternary models"),
        FileType("iq1_m", 31, "iq1_m", needs_importance=True),
        FileType("tq1_0", 36, "tq1_0", "for ternary models"),
        FileType("iq1_s", 24, "iq1_s", needs_importance=True),
        FileType("q1_0", 40, "q1_0", "for models trained so"),
        FileType(_COPY, 0, "", "as they are: makes one file of several parts"),
    )
}
"""Best first."""

_SHORT = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "fp16": "f16", "fp32": "f32"}
_READ_ONLY = {39: "nvfp4"}


def file_type_named(name: str) -> FileType:
    """Find a type; `q4_k` means `q4_k_m`."""
    wanted = name.lower().replace("-", "_")
    found = FILE_TYPES.get(_SHORT.get(wanted, wanted))
    if found is None:
        near = difflib.get_close_matches(wanted, FILE_TYPES, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise StartupError(f"unknown type {name!r}: {hint}--type list shows all")
    return found


def file_type_name(number: int) -> str | None:
    names = {kind.number: kind.name for kind in FILE_TYPES.values() if kind.name != _COPY}
    return (names | _READ_ONLY).get(number)


def is_copy(kind: FileType) -> bool:
    return kind.name == _COPY


_POOLING_NONE, _POOLING_RANK = 0, 4
"""LLAMA_POOLING_TYPE_NONE and LLAMA_POOLING_TYPE_RANK, the first and the last."""
_POOLING_UNSPECIFIED = (-1, (1 << 32) - 1)
"""LLAMA_POOLING_TYPE_UNSPECIFIED; llama.cpp writes it unsigned."""
ENCODERS = frozenset(
    (
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
    )
)
"""Architectures without cells."""
_EMBEDDING_ARCHITECTURES = ENCODERS | {"llama-embed", "t5encoder"}
"""Architectures without a trained head for the next token."""


def pooling_type(header: GgufHeader) -> int | None:
    key = header.for_architecture("pooling_type")
    pooling = header.get_int(key)
    if pooling is None or pooling in (_POOLING_NONE, *_POOLING_UNSPECIFIED):
        return None
    if not _POOLING_NONE < pooling <= _POOLING_RANK:
        raise StartupError(f"{header.path} is damaged: {key} is {pooling:,}, which llama.cpp does not know.")
    return pooling


def model_kind(header: GgufHeader) -> ModelKind:
    pooling = pooling_type(header)
    if pooling == _POOLING_RANK:
        return ModelKind.RERANKS
    is_causal = header.get_bool(header.for_architecture("attention.causal"))
    embeds = pooling is not None or header.architecture in _EMBEDDING_ARCHITECTURES
    return ModelKind.EMBEDS if embeds or is_causal is False else ModelKind.GENERATES


_SIZE_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def description(header: GgufHeader, num_parameters: int) -> str:
    """Return text such as `llama 135M q4_1`."""
    number = header.get_int("general.file_type")
    file_type = None if number is None else file_type_name(number)
    size, unit = next((unit for unit in _SIZE_UNITS if num_parameters >= 0.9995 * unit[0]), _SIZE_UNITS[-1])
    parts = (header.architecture, f"{num_parameters / size:.3g}{unit}", file_type)
    return " ".join(filter(None, parts))
