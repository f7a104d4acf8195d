"""Tensors from the header alone: against the `gguf` package, and against damage."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import gguf
import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import TENSOR_TYPES, file_tensors, model_tensors, tensor_type_named
from tests.llama.odd_models import split
from tests.tiny_model import tiny_model_path


@pytest.mark.parametrize("quant", ["f32", "q4_k_m", "q8_0"])
def test_the_same_as_gguf_reads(quant: str) -> None:
    path = tiny_model_path(quant)
    expected = [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), int(t.data_offset), int(t.n_bytes))
        for t in gguf.GGUFReader(path).tensors
    ]
    found = file_tensors(GgufHeader(path))
    assert [(t.name, t.shape, t.type.number, t.start, t.num_bytes) for t in found] == expected


def test_types_have_the_sizes_that_gguf_knows() -> None:
    made = [kind for kind in TENSOR_TYPES.values() if kind.can_be_made]
    sizes = {kind.number: (kind.block_values, kind.block_bytes) for kind in made}
    known = {int(number): size for number, size in gguf.GGML_QUANT_SIZES.items() if int(number) in sizes}
    assert len(known) > 20
    assert {number: sizes[number] for number in known} == known
    assert tensor_type_named("Q4_k").name == "q4_K"
    assert tensor_type_named("q8_0").bits == 8.5
    for name in ("q4_k_m", "q8_1", "i32"):  # a file type, one of a step's own, one that is not for weights
        with pytest.raises(StartupError, match=f"there is no tensor type '{name}'; there are f32, f16"):
            tensor_type_named(name)


def test_types_are_those_of_the_ggml_that_is_here() -> None:
    """The table stands in our code, so that who only reads headers loads no native library."""
    results = {
        "ggml_type_name": ctypes.c_char_p,
        "ggml_blck_size": ctypes.c_int64,
        "ggml_type_size": ctypes.c_size_t,
        "ggml_is_quantized": ctypes.c_bool,
        "ggml_quantize_requires_imatrix": ctypes.c_bool,
    }
    for name, result in results.items():
        function = getattr(libggml, name)
        function.argtypes, function.restype = [ctypes.c_int], result
    # "Not given" is one more than the largest: the only place where the C interface tells the count.
    count = int(llama_cpp.llama_model_quantize_default_params().output_tensor_type)
    assert set(TENSOR_TYPES) == {n for n in range(count) if libggml.ggml_blck_size(n)}
    for number, kind in TENSOR_TYPES.items():
        described = [getattr(libggml, name)(number) for name in results]
        ours = [kind.name.encode(), kind.block_values, kind.block_bytes, kind.is_quantised]
        assert described == [*ours, kind.needs_importance]


def test_long_arrays_stay_in_the_file(tiny: Path) -> None:
    header = GgufHeader(tiny)
    tokens = gguf.GGUFReader(tiny).fields["tokenizer.ggml.tokens"].contents()
    assert header.array_length("tokenizer.ggml.tokens") == len(tokens) == 1024
    assert header.get_strings("tokenizer.ggml.tokens", [0, 1023, 5000]) == {0: tokens[0], 1023: tokens[1023]}
    assert list(header.get_strings("tokenizer.ggml.tokens").values()) == tokens
    assert header.get_strings("tokenizer.ggml.scores") == {}
    assert header.get_strings("no.such.key") == {}


def test_a_model_in_parts_is_one_model(tiny: Path, tmp_path: Path) -> None:
    first, *others = split(tiny, tmp_path / "m.gguf", tensors_per_part=9)
    assert len(others) == 2
    whole = {(t.name, t.shape, t.type.name) for t in file_tensors(GgufHeader(tiny))}
    assert {(t.name, t.shape, t.type.name) for t in model_tensors(GgufHeader(first))} == whole
    others[0].write_bytes(others[1].read_bytes())
    with pytest.raises(StartupError, match=r"and its other parts have .* tensors instead of 21"):
        model_tensors(GgufHeader(first))


@pytest.mark.parametrize(
    ("dimensions", "kind", "line"),
    [
        ((4,), 99, "tensor 't' is of type 99, which llama.cpp here does not know"),
        ((4,), 4, "tensor 't' is of type 4, which"),
        ((100,), 12, "is damaged: rows of tensor 't' have 100 values, but q4_K stores 256 together"),
        ((), 0, "is damaged: tensor 't' has 0 dimensions"),
        ((1, 1, 1, 1, 1), 0, "is damaged: tensor 't' has 5 dimensions"),
        ((2**62, 4), 0, "is truncated or damaged: its tensors end at byte"),
    ],
)
def test_strange_tensors(tmp_path: Path, dimensions: tuple[int, ...], kind: int, line: str) -> None:
    path = tmp_path / "odd.gguf"
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    tensor = struct.pack("<Q", 1) + b"t" + shape + struct.pack("<IQ", kind, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(64))
    with pytest.raises(StartupError) as raised:
        model_tensors(GgufHeader(path))
    assert line in str(raised.value)


@pytest.mark.parametrize(
    ("kept", "line"),
    [
        *((size, "its header ends too early") for size in (4, 8, 24, 40, 500, 20_000)),
        (-1, "its tensors end at byte SIZE, the file"),
    ],
)
def test_files_that_end_too_early(tiny: Path, tmp_path: Path, kept: int, line: str) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.read_bytes()[:kept])
    said = line.replace("SIZE", f"{tiny.stat().st_size:,}")
    with pytest.raises(StartupError, match=f"is truncated or damaged: {said}"):
        model_tensors(GgufHeader(path))
