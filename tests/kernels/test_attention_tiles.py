"""Attention of prompts by bf16 tiles, emulated where the CPU has none, against the exact definition."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from openai_cpu_server.kernels.graphs import AttentionCase, Floats, GgmlGraphs, GgmlType
from openai_cpu_server.kernels.library import Kernel, KernelLibrary
from openai_cpu_server.kernels.proof import PROMPTS, TILES, attention_proofs, proved
from tests.kernels.library import compute_with
from tests.kernels.pools import attention_case, error, exact_attention, random_pool, visible_to_mask

_ROUNDED = 3e-2  # to bf16


def attention(library: KernelLibrary, graphs: GgmlGraphs, case: AttentionCase, threads: int = 2) -> Floats:
    with graphs.attending(case) as compute:
        return compute_with(library, Kernel.ATTENTION_TILES, compute, threads)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"width": 80},
        {"width": 72},
        {"width": 40, "value_width": 24, "cell_type": GgmlType.BF16, "heads": 9, "kv_heads": 3},
        {"width": 128, "heads": 9, "kv_heads": 3},
        {"width": 256, "heads": 8, "cell_type": GgmlType.Q8_0},
        {"width": 96, "value_width": 64, "cell_type": GgmlType.BF16, "value_type": GgmlType.Q8_0},
        {"heads": 20, "kv_heads": 1, "width": 576, "value_width": 512, "values_in_keys": True},
        {"heads": 12, "kv_heads": 4, "max_bias": 8.0},
        {"soft_cap": 5.0, "with_sinks": True},
    ],
    ids=str,
)
def test_attention_equals_the_definition_up_to_rounding(
    library: KernelLibrary, graphs: GgmlGraphs, shape: dict[str, Any]
) -> None:
    random = np.random.default_rng(0)
    case = attention_case(random, random_pool(random, 200)[:40], **shape)
    exact = exact_attention(graphs, case)
    for threads in (1, 2, 3):
        assert error(attention(library, graphs, case, threads), exact) < _ROUNDED


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("window", "width"), [(None, 64), (90, 64), (90, 72)])
def test_a_row_does_not_depend_on_the_others(
    library: KernelLibrary, graphs: GgmlGraphs, window: int | None, width: int, seed: int
) -> None:
    """Results are the same bit for bit with other chunks, sequences, threads and unseen cells."""
    random = np.random.default_rng(seed)
    places = random.permutation(1200)
    mine, others = np.sort(places[:1000]), places[1000:]
    visible = np.zeros((80, 1200), np.bool_)
    for row in range(40):
        last = 950 + row
        visible[row, mine[0 if window is None else last - window : last + 1]] = True
        visible[40 + row, others[: 10 + row]] = True
    case = attention_case(random, visible_to_mask(visible), heads=24, width=width, with_sinks=True)
    assert case.mask is not None
    expected = attention(library, graphs, case, threads=1)
    assert error(expected, exact_attention(graphs, case)) < _ROUNDED
    for rows in (slice(0, 40), slice(0, 17), slice(17, 40), slice(35, 51), slice(40, 60)):
        chunk = msgspec.structs.replace(case, q=case.q[rows], mask=case.mask[rows])
        for threads in (1, 3):
            assert (attention(library, graphs, chunk, threads) == expected[rows]).all()


def test_cells_that_are_not_seen_may_have_any_values(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    random = np.random.default_rng(0)
    visible = np.zeros((20, 64), np.bool_)
    visible[:, 3:40] = True
    case = attention_case(random, visible_to_mask(visible))
    expected = attention(library, graphs, case)
    for values in (case.k, case.v):
        values[:3] = values[40:] = np.nan
    assert (attention(library, graphs, case) == expected).all()


def test_few_rows_and_f32_cells_do_not_use_tiles(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    random = np.random.default_rng(0)
    library.switch_on(Kernel.ATTENTION_TILES)
    num_done = library.num_done(Kernel.ATTENTION_TILES)
    for rows, cell_type in ((15, GgmlType.F16), (20, GgmlType.F32)):
        with graphs.attending(attention_case(random, None, rows=rows, cell_type=cell_type)) as compute:
            compute(2)
    assert library.num_done(Kernel.ATTENTION_TILES) == num_done


def test_attention_tiles_are_verified_against_ggml(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    state = proved(library, Kernel.ATTENTION_TILES, graphs, attention_proofs(PROMPTS))
    assert state.instruction_set == TILES
