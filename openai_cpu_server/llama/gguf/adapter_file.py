"""A GGUF file with a LoRA adapter, checked against the model that it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from openai_cpu_server.errors import AdapterFailed, StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import Tensor, file_tensors, model_tensors

_A, _B = ".lora_a", ".lora_b"
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_FLOATS = frozenset(("f32", "f16", "bf16"))


class _Pair(msgspec.Struct, frozen=True):
    """The change of one matrix of the model: B A, with A of (rank, columns) and B of (rows, rank)."""

    name: str
    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        return self.b.shape[0]


class AdapterFile(msgspec.Struct, frozen=True):
    """Facts about a file that fits its model."""

    path: Path
    num_pairs: int
    rank: int
    num_bytes: int

    @classmethod
    def open(cls, path: Path, model: GgufHeader) -> AdapterFile:
        """Raises `AdapterFailed` for all that llama.cpp refuses, ends the process for, or would ignore."""
        try:
            header = GgufHeader(path)
            _check_kind(header, model)
            tensors = file_tensors(header)
            known = {tensor.name: tensor for tensor in model_tensors(model)}
        except StartupError as error:
            raise AdapterFailed(str(error)) from None
        pairs = _pairs(path, tensors)
        for pair in pairs:
            _check_pair(path, pair, known)
        return cls(
            path, len(pairs), max(pair.rank for pair in pairs), sum(tensor.num_bytes for tensor in tensors)
        )


def file_digest(path: Path) -> str:
    """SHA-256 of the file, in hex. Raises `AdapterFailed` if it cannot be read."""
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
        raise AdapterFailed(f"{path} is no adapter: its general.type is not 'adapter'.")
    kind = header.get_str("adapter.type")
    if kind != "lora":
        raise AdapterFailed(f"{path} is no LoRA adapter: its adapter.type is {kind!r}.")
    if header.architecture != model.architecture:
        raise AdapterFailed(
            f"{path} is for models of the architecture {header.architecture!r}; "
            f"{model.path.name} is {model.architecture!r}."
        )
    if header.has("adapter.lora.alpha") and not header.is_float32("adapter.lora.alpha"):
        raise AdapterFailed(f"{path} is damaged: its adapter.lora.alpha is no float32.")
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
                f"{path} has a tensor {tensor.name!r} that is no part of a LoRA: llama.cpp would not use it."
            )
        halves.setdefault(name, {})[suffix] = tensor
    if not halves:
        raise AdapterFailed(f"{path} has no tensors: it changes nothing.")
    lonely = next((name for name, found in halves.items() if len(found) < 2), None)
    if lonely is not None:
        raise AdapterFailed(f"{path} has only one of the two matrices for {lonely!r}.")
    return [_Pair(name, found[_A], found[_B]) for name, found in halves.items()]


def _check_pair(path: Path, pair: _Pair, known: dict[str, Tensor]) -> None:
    changed = known.get(pair.name)
    if changed is None:
        raise AdapterFailed(f"{path} changes {pair.name!r}, which the model does not have.")
    if not pair.name.endswith(".weight") or pair.name.endswith("_norm.weight") or len(changed.shape) < 2:
        raise AdapterFailed(f"{path} changes {pair.name!r}, which is no matrix of a product.")
    if pair.name == _EMBEDDING and _OUTPUT not in known:
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
