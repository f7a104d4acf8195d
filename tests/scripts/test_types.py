"""`scripts/regress.py types`: what it measures, and the page that it writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from regressions import types
from regressions.types import ROWS, Loss, Quality, Row, Speed
from regressions.widened import widened

from openai_cpu_server.model_source import DemoFiles
from openai_cpu_server.model_source.package import PACKAGED
from tests.tiny_model import tiny_model_path

pytestmark = [pytest.mark.thorough, pytest.mark.native]


def loss(reference: Path, model: Path, cells: str, folder: Path) -> Loss:
    expected = folder / "expected.npz"
    types.measured("reference", reference, types.TEXT, 1, expected)
    return msgspec.json.decode(types.measured("loss", expected, model, cells), type=Loss)


@pytest.mark.slow
def test_cells_of_fewer_bits_lose_more(tmp_path: Path) -> None:
    demo = DemoFiles().path()
    both = [loss(demo, demo, cells, tmp_path) for cells in ("f16", "q8_0")]
    for found in both:
        assert found.ggml.mean_divergence == pytest.approx(found.ours.mean_divergence, abs=0.05)
    floats, bytes_ = (found.ours for found in both)
    assert floats.num_tokens == 512
    assert 0 <= floats.mean_divergence < bytes_.mean_divergence < 0.1
    assert floats.mean_divergence < floats.max_divergence
    assert floats.perplexity == pytest.approx(floats.reference_perplexity, rel=0.05)


def test_speed_is_told_for_each_number_of_rows() -> None:
    found = msgspec.json.decode(types.measured("speed", tiny_model_path("q8_0"), "f16"), type=Speed)
    assert len(found.tokens_per_s) == len(ROWS)
    assert all(rate > 0 for rate in found.tokens_per_s)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_widened_model_predicts_the_same(tmp_path: Path) -> None:
    smollm2 = PACKAGED["smollm2"]
    if not smollm2.package.is_installed:
        pytest.skip("the package with SmolLM2 is not installed")
    wide = widened(smollm2.path(), tmp_path / "wide.gguf")
    found = loss(wide, smollm2.path(), "f16", tmp_path)
    assert found.ggml.mean_divergence < 0.01


def test_the_table_is_put_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "types.md"
    page.write_text(f"before\n{types.BEGIN}\nold\n{types.END}\nafter\n")
    ours, ggml = Quality(0.01, 0.5, 9.0, 8.5, 2048), Quality(0.02, 0.7, 9.1, 8.5, 2048)
    row = Row("q4_k_m", "f16", 640.0, Speed((50.0, 200.0, 400.0)), 99.0, Loss(ours, ggml, 0.001))
    types.write(types.table([row]), page)
    text = page.read_text()
    assert text.startswith(f"before\n{types.BEGIN}\n\n| weights | cells | 1.04 B: MB | 1 row, tok/s |")
    assert (
        "| Q4_K_M | f16 | 640 | 50.0 | 200.0 | 400.0 | 99 | 0.0100 | 0.0200 | 0.0010 | 0.50 | 0.70 | 9.00 |"
        in text
    )
    assert "Perplexity of the reference: 8.50, over 2048 tokens" in text
    assert text.endswith(f"{types.END}\nafter\n")
    assert "old" not in text


def test_without_speeds_the_table_has_no_columns_for_them() -> None:
    same = Quality(0.01, 0.5, 9.0, 8.5, 2048)
    heads, _, row, *_ = types.table([Row("q4_k_m", "f16", 0.0, None, 99.0, Loss(same, same, 0.0))]).split(
        "\n"
    )
    assert "tok/s" not in heads
    assert row.startswith("| Q4_K_M | f16 | 99 |")
    assert heads.count("|") == row.count("|")
