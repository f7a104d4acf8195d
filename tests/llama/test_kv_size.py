"""Bytes of a KV cell from metadata alone, for shapes of which there is no model here."""

from __future__ import annotations

from pathlib import Path

import gguf
import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell, encoder_memory, pool_cells
from tests.llama.odd_models import add_facts, header_only, written

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
    """As libmtmd says that it reserves for this encoder, with flash attention and without; and the rows that
    are kept."""
    shape = {"embedding_length": 1152, "feed_forward_length": 4304, "attention.head_count": 16}
    sizes = {"image_size": 896, "patch_size": 14}
    named = {f"clip.vision.{name}": value for name, value in (shape | sizes).items()}
    path = header_only(tmp_path / "eyes.gguf", "clip", named)
    options = EngineOptions(model_path="m.gguf", projector_path=str(path))
    kept = 256 * 2**20
    memory = encoder_memory(options)
    assert memory.weights == path.stat().st_size
    assert memory.buffers == pytest.approx(kept + 121.25 * 2**20, rel=0.001)
    slow = encoder_memory(msgspec.structs.replace(options, flash_attention=False))
    assert slow.buffers == pytest.approx(kept + 1132 * 2**20, rel=0.02)


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
def test_heads_that_are_no_integers(elements: list[float], tmp_path: Path) -> None:
    facts = header(tmp_path, **(MISTRAL_7B | {"attention.head_count_kv": elements}))
    assert bytes_per_cell(facts, KVType.F16) >= 0
