from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, model_kind
from tests.llama.odd_models import header_only, written

NONE, MEAN, LAST, RANK = 0, 1, 3, 4
UNSPECIFIED = 2**32 - 1
"""-1, as llama.cpp's own writer writes it."""


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
def test_the_header_says_what_a_model_is_for(
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
def test_a_pooling_of_tomorrow_is_refused(tmp_path: Path, pooling: int) -> None:
    file = header_only(tmp_path / "a.gguf", "qwen3", {"qwen3.pooling_type": pooling})
    with pytest.raises(StartupError, match=rf"qwen3\.pooling_type is {pooling:,}, which llama\.cpp does not"):
        model_kind(GgufHeader(file))
