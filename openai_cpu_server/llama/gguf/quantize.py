"""llama.cpp's quantization. It cannot be stopped, and only its log has progress and errors."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from openai_cpu_server.errors import ServerError, StartupError
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import Tensor, file_tensors
from openai_cpu_server.llama.model.model import metadata_overrides, native_log

_MAGIC = b"GGUF"
_SUMS, _COUNTS = ".in_sum2", ".counts"

_Floats = npt.NDArray[np.float32]


class Importance(NamedTuple):
    """Mean squares of the values that each column of a matrix is multiplied with."""

    path: Path
    columns: dict[str, _Floats]
    """Means by tensor, experts concatenated."""
    num_chunks: int | None


def read_importance(path: Path) -> Importance:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from None
    if data.startswith(_MAGIC):
        importance = _from_gguf(path, data)
    else:
        try:
            importance = _from_legacy(path, data)
        except (struct.error, ValueError):
            raise StartupError(f"{path} is not an importance matrix, or is damaged") from None
    if not importance.columns:
        raise StartupError(f"{path} is not an importance matrix: it names no tensors")
    if not all(np.isfinite(values).all() for values in importance.columns.values()):
        raise StartupError(f"{path} has values that are not numbers")
    return importance


def _from_gguf(path: Path, data: bytes) -> Importance:
    header = GgufHeader(path)
    tensors = {tensor.name: tensor for tensor in file_tensors(header)}
    columns = {}
    for sums in tensors.values():
        if not sums.name.endswith(_SUMS):
            continue
        name = sums.name.removesuffix(_SUMS)
        counts = tensors.get(name + _COUNTS)
        if counts is None:
            raise StartupError(f"{path} is damaged: it has no counts for {name}")
        if not counts.num_values or sums.num_values % counts.num_values:  # experts have one count each
            raise StartupError(
                f"{path} is damaged: it has {sums.num_values} sums and {counts.num_values} counts for {name}"
            )
        columns[name] = _means(_floats(path, data, sums), _floats(path, data, counts))
    return Importance(path, columns, header.get_int("imatrix.chunk_count"))


def _floats(path: Path, data: bytes, tensor: Tensor) -> _Floats:
    if tensor.type.name != "f32":
        raise StartupError(f"{path} is not an importance matrix: {tensor.name} is of type {tensor.type.name}")
    return np.frombuffer(data, dtype="<f4", count=tensor.num_values, offset=tensor.start)


def _means(sums: _Floats, counts: _Floats) -> _Floats:
    """An expert with count 0 gets 1."""
    per_expert = sums.reshape(len(counts), -1)
    seen = counts[:, np.newaxis]
    means = np.divide(per_expert, seen, out=np.ones_like(per_expert), where=seen > 0)
    return means.astype(np.float32).ravel()


def _from_legacy(path: Path, data: bytes) -> Importance:
    """Parse the old format. Raises `struct.error` or `ValueError` on other data."""
    file = io.BytesIO(data)

    def number() -> int:
        (value,) = struct.unpack("<i", file.read(4))
        if value < 0:
            raise ValueError("negative")
        return int(value)

    columns: dict[str, _Floats] = {}
    for _ in range(number()):
        name = file.read(number()).decode("utf-8")
        calls, num_values = number(), number()
        values = np.frombuffer(file.read(4 * num_values), "<f4", num_values)
        columns[name] = (values / calls if calls else values).astype(np.float32)
    return Importance(path, columns, number() if file.tell() < len(data) else None)


_TENSOR = re.compile(r"\[ *(\d+)/ *(\d+)\] (\S+) +- \[[^\]]*\], type = *(\S+), ")
_CHOICE = re.compile(r"size = .*? MiB ->.*? MiB \((\S+)\)")
_FALLBACK = re.compile(
    r"warning: (\S+) +- ncols +(\d+) not divisible by +(\d+) \(required for type +(\S+?)\)"
    r".*falling back to +(\S+)"
)
_FAILURE = re.compile(r"failed to quantize: (.*)")
_NEEDS_IMPORTANCE = "will require an imatrix"


class QuantizeFailed(ServerError):
    """The message is llama.cpp's own."""


class QuantizeOptions(msgspec.Struct, frozen=True, kw_only=True):
    file_type: int
    """LLAMA_FTYPE."""
    threads: int
    is_copy: bool = False
    is_pure: bool = False
    keeps_output: bool = False
    output_type: int | None = None
    """`ggml_type`, or None for llama.cpp's choice."""
    embedding_type: int | None = None
    tensor_types: tuple[tuple[str, int], ...] = ()
    """Pairs of a regular expression and a `ggml_type`; the first match decides."""
    importance: str | None = None
    allows_requantising: bool = False
    keeps_parts: bool = False
    """True: as many files as the source."""
    buffer_bytes: int
    """Memory for rows of one tensor."""


class PlannedTensor(msgspec.Struct, frozen=True):
    name: str
    source: str
    target: str


class TypeFallback(msgspec.Struct, frozen=True):
    """Rows are not a multiple of the wanted type's blocks."""

    name: str
    columns: int
    block: int
    wanted: str
    got: str


class QuantizePlan(msgspec.Struct, frozen=True):
    tensors: tuple[PlannedTensor, ...]
    fallbacks: tuple[TypeFallback, ...]
    needs_importance: bool


def plan(source: Path, options: QuantizeOptions) -> QuantizePlan:
    """Run a dry run. Raises `QuantizeFailed`."""
    transcript = _Transcript(lambda number: None)
    _run(source, Path(os.devnull), options, transcript, dry_run=True)
    return QuantizePlan(
        tuple(transcript.tensors),
        tuple(transcript.fallbacks),
        transcript.needs_importance and options.importance is None,
    )


def write_quantized(
    source: Path, target: Path, options: QuantizeOptions, on_tensor: Callable[[int], None]
) -> None:
    """Write `target`, a prefix if there are several parts. Raises `QuantizeFailed`, and may leave an
    unfinished file.

    `on_tensor`: called with numbers from 1.
    """
    _run(source, target, options, _Transcript(on_tensor), dry_run=False)


def _run(
    source: Path, target: Path, options: QuantizeOptions, transcript: _Transcript, *, dry_run: bool
) -> None:
    importance = read_importance(Path(options.importance)) if options.importance is not None else None
    native = _NativeParams(options, importance)
    native.params.dry_run = dry_run
    with transcript.listening():
        failed = llama_cpp.llama_model_quantize(
            os.fsencode(source), os.fsencode(target), ctypes.byref(native.params)
        )
    if failed:
        raise QuantizeFailed(transcript.failure or "llama.cpp gave no reason")


class _NativeParams:
    def __init__(self, options: QuantizeOptions, importance: Importance | None) -> None:
        self.params = params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = options.file_type
        params.nthread = options.threads
        params.only_copy = options.is_copy
        params.pure = options.is_pure
        params.quantize_output_tensor = not options.keeps_output
        params.allow_requantize = options.allows_requantising
        params.keep_split = options.keeps_parts
        params.max_buf_size = options.buffer_bytes
        if options.output_type is not None:
            params.output_tensor_type = options.output_type
        if options.embedding_type is not None:
            params.token_embedding_type = options.embedding_type
        if options.tensor_types:
            self._types = (llama_cpp.llama_model_tensor_override * (len(options.tensor_types) + 1))()
            for element, (pattern, number) in zip(self._types, options.tensor_types, strict=False):
                element.pattern, element.type = pattern.encode(), number
            params.tt_overrides = self._types
        if importance is not None:
            self._importance = importance
            # An empty element ends each array.
            self._columns = (llama_cpp.llama_model_imatrix_data * (len(importance.columns) + 1))()
            for element, (name, values) in zip(self._columns, importance.columns.items(), strict=False):
                element.name, element.size = name.encode(), values.size
                element.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            # Notes that llama-quantize also writes into the file.
            notes: dict[str, str | int] = {
                "quantize.imatrix.file": importance.path.name,
                "quantize.imatrix.entries_count": len(importance.columns),
            }
            if importance.num_chunks is not None:
                notes["quantize.imatrix.chunks_count"] = importance.num_chunks
            self._notes = metadata_overrides(notes)
            params.imatrix = self._columns
            params.kv_overrides = self._notes


class _Transcript:
    """Parser of a log whose lines arrive in pieces."""

    def __init__(self, on_tensor: Callable[[int], None]) -> None:
        self.tensors: list[PlannedTensor] = []
        """Planned types; in a real run `target` equals `source`."""
        self.fallbacks: list[TypeFallback] = []
        self.needs_importance = False
        self.failure: str | None = None
        self._on_tensor = on_tensor
        self._callback = llama_cpp.llama_log_callback(self._add_line)
        self._line = ""

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        log = native_log()
        llama_cpp.llama_log_set(self._callback, None)
        try:
            yield
        finally:
            log.install()

    def _add_line(self, _level: int, text: bytes, _user_data: object) -> None:
        piece = text.decode("utf-8", "replace")
        if (tensor := _TENSOR.match(piece)) is not None:
            self._on_tensor(int(tensor[1]))
        *lines, self._line = (self._line + piece).split("\n")
        for line in lines:
            if failure := _FAILURE.search(line):  # in the middle of a tensor's line
                self.failure = failure[1].strip()
            elif tensor := _TENSOR.search(line):
                choice = _CHOICE.search(line)
                self.tensors.append(PlannedTensor(tensor[3], tensor[4], choice[1] if choice else tensor[4]))
            elif fallback := _FALLBACK.search(line):
                name, columns, block, wanted, got = fallback.groups()
                self.fallbacks.append(TypeFallback(name, int(columns), int(block), wanted, got))
            elif _NEEDS_IMPORTANCE in line:
                self.needs_importance = True
