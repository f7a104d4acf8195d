"""Products of weights in every layout that llama.cpp chooses from, and those that are left to ggml."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from openai_cpu_server.kernels.layouts import LayoutGraphs, StoredWeights
from openai_cpu_server.kernels.library import Kernel, KernelLibrary
from openai_cpu_server.kernels.tensors import GgmlType
from openai_cpu_server.llama.gguf.tensors import TENSOR_TYPES

DEPTH, OUTPUTS, ROWS = 512, 64, (1, 3, 8)


@pytest.fixture(scope="module")
def graphs() -> LayoutGraphs:
    from llama_cpp._ggml import libggml

    return LayoutGraphs(libggml)


def weights(graphs: LayoutGraphs, kind: int, experts: int | None) -> StoredWeights:
    from llama_cpp._ggml import libggml

    count = OUTPUTS * (experts or 1)
    values = np.random.default_rng(kind).standard_normal((count, DEPTH), np.float32)
    data = ctypes.create_string_buffer(TENSOR_TYPES[kind].num_bytes(values.size))
    libggml.ggml_quantize_chunk(kind, values.ctypes.data, data, 0, count, DEPTH, None)
    return StoredWeights(type=kind, depth=DEPTH, outputs=OUTPUTS, num_experts=experts, data=data.raw)


@pytest.mark.parametrize("experts", [None, 3])
@pytest.mark.parametrize("kind", ["q4_0", "q4_K", "iq4_nl", "mxfp4"])
def test_another_layout_gives_the_same_results(graphs: LayoutGraphs, kind: str, experts: int | None) -> None:
    number = next(each.number for each in TENSOR_TYPES.values() if each.name == kind)
    stored = weights(graphs, number, experts)
    with graphs.plain(stored, ROWS) as plain, graphs.repacked(stored, ROWS) as repacked:
        if repacked is None:
            pytest.skip("ggml has no other layout for them on this CPU")
        for rows in ROWS:
            expected, found = plain[rows](1), repacked[rows](2)
            assert expected.shape == (rows * (experts or 1), OUTPUTS)
            assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_floats_have_no_other_layout(graphs: LayoutGraphs) -> None:
    with graphs.repacked(weights(graphs, GgmlType.F32, None), ROWS) as repacked:
        assert repacked is None


def test_each_expert_gets_its_share_of_the_rows(graphs: LayoutGraphs) -> None:
    stored = weights(graphs, GgmlType.Q8_0, 3)
    size = len(stored.data) // 3
    with graphs.plain(stored, [2]) as computing:
        found = computing[2](1)
    for expert in range(3):
        part = stored.data[expert * size :][:size]
        alone = StoredWeights(type=stored.type, depth=DEPTH, outputs=OUTPUTS, data=part)
        with graphs.plain(alone, [6]) as computing:
            expected = computing[6](1)
        for row in range(expert, 6, 3):
            assert np.allclose(found[row], expected[row], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("experts", [None, 3])
def test_products_left_to_ggml(library: KernelLibrary, graphs: LayoutGraphs, experts: int | None) -> None:
    library.switch_on(Kernel.PRODUCTS)
    for left, kinds in (((GgmlType.Q8_0,), (GgmlType.Q4_0,)), ((), (GgmlType.Q8_0, GgmlType.Q4_0))):
        library.leave(left)
        done = {kind: _num_done(library, graphs, kind, experts) for kind in (GgmlType.Q8_0, GgmlType.Q4_0)}
        assert {kind for kind, count in done.items() if count} == set(kinds)


def _num_done(library: KernelLibrary, graphs: LayoutGraphs, kind: GgmlType, experts: int | None) -> int:
    before = library.num_done(Kernel.PRODUCTS)
    with graphs.plain(weights(graphs, kind, experts), [2]) as computing:
        computing[2](1)
    return library.num_done(Kernel.PRODUCTS) - before
