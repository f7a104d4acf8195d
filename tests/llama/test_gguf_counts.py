"""Counts in a header that no file can hold: one line, before anything is read or made of that length."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, files_by_name
from openai_cpu_server.llama.gguf.tensors import file_tensors, model_tensors

_HUGE = [2**26 + 1, 2**32 - 1, 2**33, 2**63 - 1, 2**64 - 1]
_SPARSE = 1 << 40
"""Bytes of a file that takes no room on disk: what is believed of it is read for hours."""


def sparse(path: Path, head: bytes) -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(_SPARSE)
    return path


def head(*, version: int = 3, tensors: int = 0, pairs: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def refusal(path: Path) -> str:
    with pytest.raises(StartupError) as error:
        file_tensors(GgufHeader(path))
    (line,) = str(error.value).splitlines()
    assert str(path) in line
    return line


@pytest.mark.parametrize("count", _HUGE)
def test_pairs_and_tensors(count: int, tmp_path: Path) -> None:
    assert f"counts {count:,}" in refusal(sparse(tmp_path / "m.gguf", head(pairs=count)))
    assert "dimensions" in refusal(sparse(tmp_path / "m.gguf", head(tensors=count)))


@pytest.mark.parametrize("count", _HUGE)
@pytest.mark.parametrize("before", [b"", text(b"key") + struct.pack("<I", 8)])
def test_lengths_of_keys_and_strings(before: bytes, count: int, tmp_path: Path) -> None:
    refusal(sparse(tmp_path / "m.gguf", head(pairs=1) + before + struct.pack("<Q", count)))


@pytest.mark.parametrize("count", _HUGE)
@pytest.mark.parametrize("kind", [0, 5, 6, 8, 9, 10, 12, 99])
def test_lengths_of_arrays(kind: int, count: int, tmp_path: Path) -> None:
    array = pair(b"key", 9, struct.pack("<IQ", kind, count))
    path = sparse(tmp_path / "m.gguf", head(pairs=1) + array)
    with contextlib.suppress(StartupError):  # a long array of numbers is left in the file
        GgufHeader(path)


@pytest.mark.parametrize(("kind", "count"), [("<I", 100_000), ("<I", 2**32 - 1), ("<Q", 2**63)])
def test_parts(kind: str, count: int, tmp_path: Path) -> None:
    pairs = pair(b"split.count", 4 if kind == "<I" else 10, struct.pack(kind, count))
    path = tmp_path / f"m-00001-of-{count:05d}.gguf"
    path.write_bytes(head(pairs=1) + pairs)
    with pytest.raises(StartupError, match=r"split\.count is [\d,]+, at most 99,999 can be"):
        model_tensors(GgufHeader(path))


def test_parts_by_their_name_alone() -> None:
    assert files_by_name(Path("a/m.gguf")) == [Path("a/m.gguf")]
    assert files_by_name(Path("a/m-00002-of-00003.gguf")) == [
        Path(f"a/m-0000{number}-of-00003.gguf") for number in (1, 2, 3)
    ]
    assert files_by_name(Path("m-00001-of-1000000000.gguf")) == [Path("m-00001-of-1000000000.gguf")]


def test_a_file_for_other_machines_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    assert refusal(path) == f"{path} is for big-endian machines."
