"""Products by tiles, emulated where the CPU has none, against exact products and against each other."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from openai_cpu_server.kernels.graphs import (
    TILE_TYPES,
    Floats,
    GgmlGraphs,
    GgmlType,
    ProductCase,
    num_weights_of_block,
    random_weights,
)
from openai_cpu_server.kernels.library import Kernel, KernelLibrary
from tests.kernels.library import compute_with
from tests.kernels.test_products import (
    choose_experts,
    exact_product,
    expert_case,
    multiply,
    product_case,
    stored_weights,
)

FLOAT_TYPES = (GgmlType.F16, GgmlType.BF16)
EXACT_TYPES = (GgmlType.MXFP4, GgmlType.BF16)
"""Types whose weights bf16 holds exactly."""
BYTE_TYPES = (GgmlType.Q4_K, GgmlType.Q5_K, GgmlType.Q6_K)
TYPES_OF_EACH_ORDER = (
    GgmlType.Q4_K,
    GgmlType.Q6_K,
    GgmlType.Q2_K,
    GgmlType.Q4_0,
    GgmlType.Q8_0,
    GgmlType.MXFP4,
)


def to_bf16(numbers: Floats) -> npt.NDArray[np.float64]:
    bits = numbers.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def by_tiles(
    library: KernelLibrary, graphs: GgmlGraphs, case: ProductCase, threads: int = 2, *, rows: int | None = 1
) -> Floats:
    """Multiply by tiles where an expert has at least `rows` rows."""
    library.use_tiles_from(case.weight_type, rows)
    with graphs.multiplying(case) as compute:
        return compute_with(library, Kernel.TILES, compute, threads)


def block_maxima(magnitudes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the largest magnitude in the block of 256 of each number."""
    unit = 256 if magnitudes.shape[-1] % 256 == 0 else magnitudes.shape[-1]
    blocks = magnitudes.reshape(*magnitudes.shape[:-1], -1, unit)
    return np.broadcast_to(blocks.max(axis=-1, keepdims=True), blocks.shape).reshape(magnitudes.shape)


def largest_error(case: ProductCase, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Bound the error of rounded weights, where activations are rounded to bf16 or both to bytes.

    Scales and offsets have 16 bits, so the error of a small weight follows the largest of its block."""
    magnitudes, activations = np.abs(weights), np.abs(case.activations.astype(np.float64))
    if case.weight_type in BYTE_TYPES:
        weight_errors, activation_errors = block_maxima(magnitudes) / 200, block_maxima(activations) / 253
        return multiply(case, activations, weight_errors) + multiply(
            case, activation_errors, magnitudes + weight_errors
        )
    errors = 1e-6 * magnitudes
    if case.weight_type not in EXACT_TYPES:
        errors = 2.0**-8 * magnitudes + 2.0**-9 * block_maxima(magnitudes) + 2.0**-21
    return multiply(case, activations, errors)


def check(library: KernelLibrary, graphs: GgmlGraphs, case: ProductCase) -> None:
    weights = stored_weights(graphs, case)
    found = by_tiles(library, graphs, case, 1)
    exact = case.activations.astype(np.float64)
    expected = multiply(case, exact if case.weight_type in BYTE_TYPES else to_bf16(case.activations), weights)
    assert np.all(np.abs(found - expected) <= largest_error(case, weights))
    assert np.array_equal(by_tiles(library, graphs, case, 3), found)


_SHAPES = [(1, 70, 8), (16, 33, 1), (17, 290, 3), (33, 32, 7), (66, 33, 9), (100, 1, 18)]
"""Rows, outputs and units of depth: all paths by numbers of rows, and ragged ends of each."""


@pytest.mark.parametrize("kind", TILE_TYPES)
def test_types_shapes_and_sizes_of_numbers(
    library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType
) -> None:
    random = np.random.default_rng(0)
    unit = max(32, num_weights_of_block(kind))
    for rows, outputs, units in _SHAPES:
        depth = units * unit if unit == 32 else (units + 7) // 8 * unit
        depth -= 5 if kind in FLOAT_TYPES else 0
        check(library, graphs, product_case(random, kind, rows=rows, outputs=outputs, depth=depth, size=1e-2))
    for size in (1e-3, 1, 1e3):
        check(library, graphs, product_case(random, kind, rows=20, outputs=40, depth=512, size=size))
    case = product_case(random, kind, rows=20, outputs=40, depth=512, size=1e-2)
    for size in (1e-30, 1e30):
        check(library, graphs, msgspec.structs.replace(case, activations=np.float32(size) * case.activations))


@pytest.mark.parametrize("kind", TILE_TYPES)
def test_error_of_gaussian_numbers(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    """The figures of docs/measurements.md, against exact products of the stored weights."""
    random = np.random.default_rng(0)
    case = ProductCase(
        weights=random_weights(kind, 300, 1024, random, size=1e-2),
        activations=random.standard_normal((40, 1024), np.float32),
        weight_type=kind,
    )
    exact = exact_product(case, stored_weights(graphs, case))
    error = np.std(by_tiles(library, graphs, case) - exact) / np.std(exact)
    assert error < (0.0018 if kind in EXACT_TYPES else 0.01 if kind in BYTE_TYPES else 0.0028)


@pytest.mark.parametrize("kind", TYPES_OF_EACH_ORDER)
def test_a_row_is_independent(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    """Results are equal to the last bit for any number of rows, because sums have one order."""
    case = product_case(np.random.default_rng(0), kind, rows=70, outputs=70, depth=2304, size=1e-2)
    together = by_tiles(library, graphs, case)
    for first, last in ((0, 1), (1, 17), (17, 50), (3, 70)):
        alone = msgspec.structs.replace(case, activations=case.activations[first:last])
        assert np.array_equal(by_tiles(library, graphs, alone), together[first:last])


@pytest.mark.parametrize("kind", TYPES_OF_EACH_ORDER)
def test_zeros_and_a_broken_row(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    case = product_case(np.random.default_rng(0), kind, rows=40, outputs=40, depth=512, size=1e-2)
    for zero in ("activations", "weights"):
        nothing = msgspec.structs.replace(case, **{zero: np.zeros_like(getattr(case, zero))})
        assert not by_tiles(library, graphs, nothing).any()
    healthy, others = by_tiles(library, graphs, case), np.arange(40) != 3
    for broken in (np.nan, np.inf, -np.inf):
        case.activations[3, 300] = broken
        found = by_tiles(library, graphs, case)
        assert not np.isfinite(found[3]).any()
        assert np.array_equal(found[others], healthy[others])


@pytest.mark.parametrize("kind", [GgmlType.Q4_K, GgmlType.Q8_0])
def test_weights_that_are_not_finite(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    case = product_case(np.random.default_rng(0), kind, rows=20, outputs=40, depth=512, size=1e-2)
    healthy = by_tiles(library, graphs, case)
    for bits in (0x7C00, 0xFC00, 0x7E00):
        case.weights[5, :2] = np.array([bits], np.uint16).view(np.uint8)
        found = by_tiles(library, graphs, case)
        assert not np.isfinite(found[:, 5]).any()
        assert np.array_equal(np.delete(found, 5, axis=1), np.delete(healthy, 5, axis=1))


@pytest.mark.parametrize("kind", [GgmlType.Q4_K, GgmlType.F16])
def test_the_number_of_rows_decides(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    case = product_case(np.random.default_rng(0), kind, rows=20, outputs=40, depth=512)
    library.switch_on(Kernel.TILES)
    with graphs.multiplying(case) as compute:
        for rows, uses_tiles in ((20, True), (21, False), (0, True), (None, False)):
            library.use_tiles_from(kind, rows)
            num_done = library.num_done(Kernel.TILES)
            compute(2)
            assert (library.num_done(Kernel.TILES) > num_done) == uses_tiles


@pytest.mark.parametrize("kind", [GgmlType.Q4_K, GgmlType.MXFP4, GgmlType.F16])
def test_experts_with_many_rows_and_with_few(
    library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType
) -> None:
    """An expert's product equals its product alone, by the kernel that its number of rows selects."""
    random = np.random.default_rng(0)
    experts = np.concatenate(
        [choose_experts(random, tokens=90, slots=2, num_experts=3), np.full((3, 2), 4)]
    ).astype(np.int32)
    experts[-1, 1] = 5
    case = expert_case(random, kind, experts, num_experts=6, depth=768, has_own_rows=True)
    found = by_tiles(library, graphs, case, rows=20)
    for threads in (1, 3):
        assert np.array_equal(by_tiles(library, graphs, case, threads, rows=20), found)
    for expert in np.unique(experts):
        alone = msgspec.structs.replace(
            case, weights=case.weights[expert], activations=case.activations[experts == expert], experts=None
        )
        has_many = (experts == expert).sum() >= 20 or not library.multiplies(kind)
        with graphs.multiplying(alone) as compute:
            library.use_tiles_from(kind, 1)
            expected = compute_with(library, Kernel.TILES if has_many else Kernel.PRODUCTS, compute)
        assert np.array_equal(found[experts == expert], expected)


@pytest.mark.parametrize(
    ("kind", "num_experts", "used", "outputs", "depth"),
    [(GgmlType.MXFP4, 4, 2, 36, 2880), (GgmlType.Q4_K, 16, 8, 40, 1024), (GgmlType.BF16, 4, 1, 7, 100)],
)
def test_shapes_of_mixtures(
    library: KernelLibrary,
    graphs: GgmlGraphs,
    kind: GgmlType,
    num_experts: int,
    used: int,
    outputs: int,
    depth: int,
) -> None:
    """Shapes of gpt-oss and qwen3-moe, and one that fills no tile."""
    random = np.random.default_rng(0)
    experts = choose_experts(random, tokens=40, slots=used, num_experts=num_experts)
    case = expert_case(random, kind, experts, num_experts=num_experts, outputs=outputs, depth=depth)
    check(library, graphs, case)


@pytest.mark.parametrize("number", [-1, 5, 2**31 - 1, -(2**31)])
def test_an_unknown_expert_gives_zeros(library: KernelLibrary, graphs: GgmlGraphs, number: int) -> None:
    random = np.random.default_rng(0)
    experts = choose_experts(random, tokens=60, slots=2, num_experts=5)
    case = expert_case(random, GgmlType.Q8_0, experts, num_experts=5)
    expected = by_tiles(library, graphs, case)
    expected[2, 1] = expected[4, 0] = 0
    experts[2, 1] = experts[4, 0] = number
    assert np.array_equal(by_tiles(library, graphs, case), expected)


def test_activations_are_packed_once_for_products_that_share_them(
    library: KernelLibrary, graphs: GgmlGraphs
) -> None:
    """Multiply like Q, K and V, with types of another order of columns between them. The second round has
    other numbers at the same address."""
    kinds = (GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.Q5_K, GgmlType.Q8_0, GgmlType.Q4_K)
    for seed in range(2):
        random = np.random.default_rng(seed)
        first = product_case(random, kinds[0], rows=40, outputs=64, depth=512, size=1e-2)
        cases = [
            msgspec.structs.replace(
                first, weight_type=kind, weights=random_weights(kind, 64, 512, random, size=1e-2)
            )
            for kind in kinds
        ]
        with graphs.multiplying_each(cases) as compute:
            together = compute_with(library, Kernel.TILES, compute)
        assert np.array_equal(
            together, np.concatenate([by_tiles(library, graphs, case).ravel() for case in cases])
        )


def test_each_pair_of_matrices_in_a_batch(library: KernelLibrary, graphs: GgmlGraphs) -> None:
    random = np.random.default_rng(0)
    plain = product_case(random, GgmlType.Q4_K, rows=6 * 20, outputs=3 * 40, depth=512, size=1e-2)
    case = msgspec.structs.replace(
        plain, activations=plain.activations.reshape(6, 20, 512), weights=plain.weights.reshape(3, 40, -1)
    )
    check(library, graphs, case)


@pytest.mark.parametrize(
    ("rows", "outputs", "depth"), [(530, 40, 1280), pytest.param(8192, 300, 512, marks=pytest.mark.slow)]
)
def test_a_long_prompt(
    library: KernelLibrary, graphs: GgmlGraphs, rows: int, outputs: int, depth: int
) -> None:
    """Rows and depth are cut more than once."""
    random = np.random.default_rng(0)
    check(
        library,
        graphs,
        product_case(random, GgmlType.Q4_K, rows=rows, outputs=outputs, depth=depth, size=1e-2),
    )
