from __future__ import annotations

from pathlib import Path

import pytest

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.llama.gguf.header import GgufHeader, model_kind
from tests.llama.odd_models import header_only

NONE, MEAN, LAST, RANK = 0, 1, 3, 4


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
    said = {"pooling_type": pooling, "attention.causal": causal}
    facts = {f"{architecture}.{key}": value for key, value in said.items() if value is not None}
    assert model_kind(GgufHeader(header_only(tmp_path / "a.gguf", architecture, facts))) is kind


def test_a_real_file(tiny: Path) -> None:
    assert model_kind(GgufHeader(tiny)) is ModelKind.GENERATES
