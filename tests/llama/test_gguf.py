"""GGUF headers: bytes of a KV cell, tensors as the `gguf` package reads them, kinds of models, damage."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from pathlib import Path

import gguf
import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader, files_by_name, model_kind
from openai_cpu_server.llama.gguf.tensors import TENSOR_TYPES, file_tensors, model_tensors, tensor_type_named
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell, encoder_memory, pool_cells
from tests.llama.odd_models import add_facts, header_only, split, written
from tests.tiny_model import tiny_model_path

MISTRAL_7B = {
    "block_count": 32,
    "embedding_length": 4096,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
}


def header(folder: Path, **facts: object) -> GgufHeader:
    named = {f"some.{name}": value for name, value in facts.items()}
    return GgufHeader(header_only(folder / "facts.gguf", "some", named))


@pytest.mark.parametrize(
    ("kv_type", "expected"),
    [(KVType.F32, 262_144), (KVType.F16, 131_072), (KVType.BF16, 131_072), (KVType.Q8_0, 69_632)],
)
def test_mistral_7b(tmp_path: Path, kv_type: KVType, expected: int) -> None:
    assert bytes_per_cell(header(tmp_path, **MISTRAL_7B), kv_type) == expected


SHAPES = {
    "all heads": ({}, 4 * 2 * 2 * (16 + 16)),
    "grouped": ({"attention.head_count_kv": 1}, 4 * 1 * 2 * (16 + 16)),
    "own sizes": ({"attention.key_length": 24, "attention.value_length": 8}, 4 * 2 * 2 * (24 + 8)),
    "layers without attention": ({"attention.head_count_kv": [0, 2, 0, 1]}, (2 + 1) * 2 * (16 + 16)),
    "heads per layer": ({"attention.head_count": [2, 4, 2, 4]}, (2 + 4 + 2 + 4) * 2 * (16 + 16)),
    "shared layers": ({"attention.shared_kv_layers": 3}, 1 * 2 * 2 * (16 + 16)),
    "prediction layers": ({"nextn_predict_layers": 1}, 3 * 2 * 2 * (16 + 16)),
    "every other layer": ({"full_attention_interval": 2}, 2 * 2 * 2 * (16 + 16)),
    "window heads": (
        {"attention.key_length_swa": 32, "attention.value_length_swa": 32},
        4 * 2 * 2 * (32 + 32),
    ),
    "latent": (
        {
            "attention.head_count_kv": 1,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 192,
        },
        4 * 2 * 576,
    ),
    "recurrent": ({"attention.head_count": 0}, 0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(tmp_path: Path, name: str) -> None:
    facts, expected = SHAPES[name]
    base = {"block_count": 4, "embedding_length": 32, "attention.head_count": 2}
    assert bytes_per_cell(header(tmp_path, **{**base, **facts}), KVType.F16) == expected


def test_the_memory_of_a_projector(tmp_path: Path) -> None:
    """Buffers have the size that libmtmd reports for this encoder, plus 256 MiB of stored rows."""
    shape = {"embedding_length": 1152, "feed_forward_length": 4304, "attention.head_count": 16}
    sizes = {"image_size": 896, "patch_size": 14}
    named = {f"clip.vision.{name}": value for name, value in (shape | sizes).items()}
    path = header_only(tmp_path / "vision.gguf", "clip", named)
    options = EngineOptions(model_path="m.gguf", projector_path=str(path))
    stored_rows = 256 * 2**20
    memory = encoder_memory(options)
    assert memory.weights == path.stat().st_size
    assert memory.buffers == pytest.approx(stored_rows + 121.25 * 2**20, rel=0.001)
    slow = encoder_memory(msgspec.structs.replace(options, flash_attention=False))
    assert slow.buffers == pytest.approx(stored_rows + 1132 * 2**20, rel=0.02)


def test_the_default_pool_and_a_requested_one() -> None:
    assert pool_cells(None, 1000, 2 * 1000 * 700) == 512
    assert pool_cells(None, 1000, 10**12) == 16_384
    assert pool_cells(None, 0, 10**9) == 16_384
    assert pool_cells(5000, 1000, 5000 * 1000) == 5000
    with pytest.raises(StartupError, match=r"256 tokens at 1000 bytes need 0\.2 MiB"):
        pool_cells(None, 1000, 2 * 1000 * 255)
    with pytest.raises(StartupError, match="Not enough memory"):
        pool_cells(5001, 1000, 5000 * 1000)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        *(
            ({"block_count": count}, rf"some\.block_count is {count:,}, at most 512 can be")
            for count in (513, 10**9, 2**32 - 1)
        ),
        ({"block_count": 0}, r"some\.block_count is 0, at least 1 can be"),  # llama.cpp ends the process
        *(
            ({"expert_count": experts, "expert_used_count": used}, r"expert_(used_)?count is .*, at most")
            for experts, used in ((8, 9), (0, 1), (1025, 2))
        ),
        ({"attention.head_count_kv": [8] * 31 + [10**9]}, r"head_count_kv is 1,000,000,000, at most"),
    ],
)
def test_counts_that_no_model_has_are_refused(facts: dict[str, object], why: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=why):
        header(tmp_path, **(MISTRAL_7B | facts))
    assert header(tmp_path, expert_count=8, expert_used_count=[2, 8]).has("some.expert_count")


@pytest.mark.parametrize(
    "key",
    [
        *("block_count", "nextn_predict_layers", "full_attention_interval", "context_length"),
        *("expert_count", "expert_used_count", "embedding_length", "feed_forward_length"),
        *("attention.head_count", "attention.head_count_kv", "attention.shared_kv_layers"),
        *("attention.key_length", "attention.value_length_swa"),
    ],
)
@pytest.mark.parametrize("value", [2**31, 2**32 - 1, 2**63 - 1, -1, -(10**9), -(2**63)])
def test_a_number_that_no_file_can_hold_is_refused(key: str, value: int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "lies.gguf", "some")
    add_facts(writer, {f"some.{name}": number for name, number in MISTRAL_7B.items() if name != key})
    writer.add_int64(f"some.{key}", value)
    file = written(writer, tmp_path / "lies.gguf")
    with pytest.raises(StartupError, match=rf"damaged: some\.{key} is {value:,}, at (most|least) [\d,]+ can"):
        GgufHeader(file)


def test_a_larger_file_can_hold_more(tmp_path: Path) -> None:
    facts = {"some.embedding_length": 2**20}
    small = header_only(tmp_path / "m-00001-of-00002.gguf", "some", facts)
    with pytest.raises(StartupError, match=r"embedding_length is 1,048,576, at most 65,536 can be"):
        GgufHeader(small)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(bytes(2**20 // 8))
    assert GgufHeader(small).get_int("some.embedding_length") == 2**20


def test_heads_and_their_sizes_are_too_much_together(tmp_path: Path) -> None:
    facts = {"attention.head_count_kv": 60_000, "attention.key_length": 60_000}
    with pytest.raises(
        StartupError, match=r"is damaged: it counts 3,600,000,000 keys of a token in one layer"
    ):
        bytes_per_cell(header(tmp_path, **(MISTRAL_7B | facts)), KVType.F16)


@pytest.mark.parametrize("elements", [[float("nan")] * 32, [float("inf")] * 32, [1.5] * 32])
def test_counts_of_heads_that_are_not_integers(elements: list[float], tmp_path: Path) -> None:
    facts = header(tmp_path, **(MISTRAL_7B | {"attention.head_count_kv": elements}))
    assert bytes_per_cell(facts, KVType.F16) >= 0


@pytest.mark.parametrize("quant", ["f32", "q4_k_m", "q8_0"])
def test_tensors_are_those_that_the_gguf_package_reads(quant: str) -> None:
    path = tiny_model_path(quant)
    expected = [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), int(t.data_offset), int(t.n_bytes))
        for t in gguf.GGUFReader(path).tensors
    ]
    found = file_tensors(GgufHeader(path))
    assert [(t.name, t.shape, t.type.number, t.start, t.num_bytes) for t in found] == expected


def test_types_have_the_sizes_of_the_gguf_package() -> None:
    kinds = [kind for kind in TENSOR_TYPES.values() if kind.can_be_made]
    sizes = {kind.number: (kind.block_values, kind.block_bytes) for kind in kinds}
    expected = {int(number): size for number, size in gguf.GGML_QUANT_SIZES.items() if int(number) in sizes}
    assert len(expected) > 20
    assert {number: sizes[number] for number in expected} == expected
    assert tensor_type_named("Q4_k").name == "q4_K"
    assert tensor_type_named("q8_0").bits == 8.5
    for name in (
        "q4_k_m",
        "q8_1",
        "i32",
    ):  # a file type, a type of activations, a type that is not for weights
        with pytest.raises(StartupError, match=f"there is no tensor type '{name}'; there are f32, f16"):
            tensor_type_named(name)


def test_types_are_those_of_the_loaded_ggml() -> None:
    """The table stands in our code, so that reading headers loads no native library."""
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
    # The default is GGML_TYPE_COUNT, which the C interface shows nowhere else.
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
    ("num_bytes", "line"),
    [
        *((size, "its header ends too early") for size in (4, 8, 24, 40, 500, 20_000)),
        (-1, "its tensors end at byte SIZE, the file"),
    ],
)
def test_files_that_end_too_early(tiny: Path, tmp_path: Path, num_bytes: int, line: str) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.read_bytes()[:num_bytes])
    message = line.replace("SIZE", f"{tiny.stat().st_size:,}")
    with pytest.raises(StartupError, match=f"is truncated or damaged: {message}"):
        model_tensors(GgufHeader(path))


_HUGE = [2**26 + 1, 2**32 - 1, 2**33, 2**63 - 1, 2**64 - 1]
_SPARSE = 1 << 40  # bytes of a file without blocks on disk; reading as much as its counts say takes hours


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


def test_a_big_endian_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    assert refusal(path) == f"{path} is for big-endian machines."


NONE, MEAN, LAST, RANK = 0, 1, 3, 4
UNSPECIFIED = 2**32 - 1  # -1, as llama.cpp's own writer writes it


@pytest.mark.parametrize(
    ("architecture", "pooling", "causal", "kind"),
    [
        ("qwen3", -1, None, ModelKind.GENERATES),
        ("llama", None, None, ModelKind.GENERATES),
        ("llama", NONE, True, ModelKind.GENERATES),
        ("llama", UNSPECIFIED, None, ModelKind.GENERATES),
        ("llama", UNSPECIFIED, False, ModelKind.EMBEDS),
        ("bert", UNSPECIFIED, None, ModelKind.EMBEDS),
        ("qwen3", LAST, None, ModelKind.EMBEDS),
        ("qwen3", RANK, None, ModelKind.RERANKS),
        ("llama", None, False, ModelKind.EMBEDS),
        ("bert", MEAN, False, ModelKind.EMBEDS),
        ("bert", None, None, ModelKind.EMBEDS),
        ("bert", RANK, False, ModelKind.RERANKS),
        ("nomic-bert-moe", NONE, None, ModelKind.EMBEDS),
        ("an-architecture-of-tomorrow", None, None, ModelKind.GENERATES),
    ],
)
def test_the_kind_of_a_model_follows_from_its_header(
    tmp_path: Path, architecture: str, pooling: int | None, causal: bool | None, kind: ModelKind
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", architecture)
    if pooling is not None:
        add_pooling = writer.add_int32 if pooling < 0 else writer.add_uint32
        add_pooling(f"{architecture}.pooling_type", pooling)
    if causal is not None:
        writer.add_bool(f"{architecture}.attention.causal", causal)
    assert model_kind(GgufHeader(written(writer, tmp_path / "a.gguf"))) is kind


@pytest.mark.parametrize("pooling", [5, 255, 2**31])
def test_an_unknown_pooling_is_refused(tmp_path: Path, pooling: int) -> None:
    file = header_only(tmp_path / "a.gguf", "qwen3", {"qwen3.pooling_type": pooling})
    with pytest.raises(StartupError, match=rf"qwen3\.pooling_type is {pooling:,}, which llama\.cpp does not"):
        model_kind(GgufHeader(file))
