from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.llama.gguf.header import GgufHeader, model_kind

NONE, MEAN, LAST, RANK = 0, 1, 3, 4


def header(
    path: Path, architecture: str, *, pooling: int | None = None, causal: bool | None = None
) -> GgufHeader:
    writer = gguf.GGUFWriter(path, architecture)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    if causal is not None:
        writer.add_causal_attention(causal)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GgufHeader(path)


@pytest.mark.parametrize(
    ("architecture", "pooling", "causal", "kind"),
    [
        ("llama", None, None, ModelKind.GENERATES),
        ("llama", NONE, True, ModelKind.GENERATES),
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
def test_the_header_says_what_a_model_is_for(
    tmp_path: Path, architecture: str, pooling: int | None, causal: bool | None, kind: ModelKind
) -> None:
    assert model_kind(header(tmp_path / "a.gguf", architecture, pooling=pooling, causal=causal)) is kind


def test_a_real_file(tiny: Path) -> None:
    assert model_kind(GgufHeader(tiny)) is ModelKind.GENERATES
