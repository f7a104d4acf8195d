"""The products kernel against exact products of the stored weights, and against ggml's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from openai_cpu_server.kernels.graphs import (
    PRODUCT_TYPES,
    Floats,
    GgmlGraphs,
    GgmlType,
    Ints,
    ProductCase,
    num_weights_of_block,
    random_weights,
)
from openai_cpu_server.kernels.library import Kernel, KernelLibrary
from tests.kernels.library import compute_with

Doubles = npt.NDArray[np.float64]

_TYPES_OF_EACH_LOOP = (GgmlType.Q4_1, GgmlType.MXFP4, GgmlType.Q4_K, GgmlType.IQ3_S)
"""Types whose products differ in more than the unpacking of weights."""
_STEPS = 127  # steps from 0 to the largest activation of a unit, and as many negative ones
_SUM_ERROR = 1e-5  # rounding of sums of floats, as a share of the largest possible result


def product_case(
    random: np.random.Generator, kind: GgmlType, *, rows: int, outputs: int, depth: int, size: float = 1.0
) -> ProductCase:
    """Make rows of activations of very different size, with some large values in them."""
    sizes = np.exp(2 * random.standard_normal((rows, 1)))
    activations = sizes * random.standard_normal((rows, depth)) ** 3
    return ProductCase(
        weights=random_weights(kind, outputs, depth, random, size=size),
        activations=activations.astype(np.float32),
        weight_type=kind,
    )


def expert_case(
    random: np.random.Generator,
    kind: GgmlType,
    experts: Ints,
    *,
    num_experts: int,
    outputs: int = 40,
    depth: int = 512,
    has_own_rows: bool = False,
) -> ProductCase:
    """Make a case of experts (tokens, slots). With `has_own_rows` each slot has its own activations."""
    tokens, slots = experts.shape
    rows = slots if has_own_rows else 1
    plain = product_case(random, kind, rows=tokens * rows, outputs=num_experts * outputs, depth=depth)
    return msgspec.structs.replace(
        plain,
        weights=plain.weights.reshape(num_experts, outputs, -1),
        activations=plain.activations.reshape(tokens, rows, depth),
        experts=experts,
    )


def choose_experts(random: np.random.Generator, *, tokens: int, slots: int, num_experts: int) -> Ints:
    return random.random((tokens, num_experts)).argsort(axis=1)[:, :slots].astype(np.int32)


def stored_weights(graphs: GgmlGraphs, case: ProductCase) -> Doubles:
    return graphs.unpacked(case).astype(np.float64)


def multiply(case: ProductCase, activations: Doubles, weights: Doubles) -> Doubles:
    """Multiply values in place of the case's activations by values in place of its weights, of any depth."""
    if case.experts is None:
        if weights.ndim == 3:
            weights = np.repeat(weights, len(activations) // len(weights), axis=0)
        return activations @ weights.swapaxes(-1, -2)
    found = np.zeros(case.shape)
    activations = np.broadcast_to(activations, (*case.experts.shape, activations.shape[-1]))
    for expert, expert_weights in enumerate(weights):
        found[case.experts == expert] = activations[case.experts == expert] @ expert_weights.T
    return found


def exact_product(case: ProductCase, weights: Doubles) -> Doubles:
    return multiply(case, case.activations.astype(np.float64), weights)


def largest_error(case: ProductCase, weights: Doubles) -> Doubles:
    """Return the largest error of each result if every activation is rounded to the nearest step."""
    unit = num_weights_of_block(case.weight_type)  # activations of a unit have one scale
    weights = np.abs(weights)
    activations = np.abs(case.activations.astype(np.float64))
    half_steps = activations.reshape(*activations.shape[:-1], -1, unit).max(axis=-1) / _STEPS / 2
    by_unit = weights.reshape(*weights.shape[:-1], -1, unit).sum(axis=-1)
    return multiply(case, half_steps, by_unit) + _SUM_ERROR * multiply(case, activations, weights)


def compute_product(library: KernelLibrary, graphs: GgmlGraphs, case: ProductCase) -> Floats:
    with graphs.multiplying(case) as compute:
        return compute_with(library, Kernel.PRODUCTS, compute)


Check = Callable[[ProductCase], None]


@pytest.fixture(autouse=True)
def _has_the_type(request: pytest.FixtureRequest, library: KernelLibrary) -> None:
    if "kind" in request.fixturenames and not library.multiplies(request.getfixturevalue("kind")):
        pytest.skip("left to ggml on this CPU")


@pytest.fixture
def check(library: KernelLibrary, graphs: GgmlGraphs) -> Check:
    def check(case: ProductCase) -> None:
        weights = stored_weights(graphs, case)
        with graphs.multiplying(case) as compute:
            found = compute_with(library, Kernel.PRODUCTS, compute, 1)
            assert np.all(np.abs(found - exact_product(case, weights)) <= largest_error(case, weights))
            for threads in (2, 3):
                assert np.array_equal(compute_with(library, Kernel.PRODUCTS, compute, threads), found)

    return check


_SHAPES = [
    *((1, 70, 8), (1, 33, 1), (2, 32, 3), (3, 47, 7), (5, 33, 18), (9, 200, 8), (12, 64, 9)),
    *((31, 70, 8), (70, 33, 3), (300, 70, 8)),
]  # rows, outputs and units of depth: all paths by numbers of rows, and ragged ends of the two others


@pytest.mark.parametrize("kind", PRODUCT_TYPES)
def test_types_shapes_and_sizes_of_numbers(check: Check, kind: GgmlType) -> None:
    random = np.random.default_rng(0)
    for rows, outputs, units in _SHAPES:
        depth = units * num_weights_of_block(kind)
        check(product_case(random, kind, rows=rows, outputs=outputs, depth=depth))
    for size in (1e-3, 1e3):
        check(product_case(np.random.default_rng(0), kind, rows=4, outputs=40, depth=512, size=size))
    case = product_case(np.random.default_rng(0), kind, rows=4, outputs=40, depth=512)
    for size in (1e-30, 1e30):
        check(msgspec.structs.replace(case, activations=np.float32(size) * case.activations))


@pytest.mark.parametrize("kind", PRODUCT_TYPES)
def test_a_row_is_independent(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    """Results are equal to the last bit, so that a greedy answer does not depend on other requests."""
    case = product_case(np.random.default_rng(0), kind, rows=70, outputs=100, depth=768)
    together = compute_product(library, graphs, case)
    for first, last in ((0, 1), (1, 3), (3, 8), (8, 70)):
        alone = msgspec.structs.replace(case, activations=case.activations[first:last])
        assert np.array_equal(compute_product(library, graphs, alone), together[first:last])


@pytest.mark.parametrize("kind", PRODUCT_TYPES)
def test_products_are_as_exact_as_ggmls(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    random = np.random.default_rng(0)
    case = ProductCase(
        weights=random_weights(kind, 300, 1024, random),
        activations=random.standard_normal((40, 1024), np.float32),
        weight_type=kind,
    )
    exact = exact_product(case, stored_weights(graphs, case))
    with graphs.multiplying(case) as compute:
        theirs = np.std(compute(2) - exact)
    assert np.std(compute_product(library, graphs, case) - exact) <= 1.01 * theirs


@pytest.mark.parametrize("kind", PRODUCT_TYPES)
def test_extreme_weights(check: Check, graphs: GgmlGraphs, kind: GgmlType) -> None:
    """Sums of bytes are largest here, where they could overflow 16 bits."""
    random = np.random.default_rng(0)
    for byte in (0x00, 0x77, 0x80, 0xFF):
        weights = random_weights(kind, 33, 512, random, bytes_of=range(byte, byte + 1))
        case = ProductCase(weights=weights, activations=np.ones((1, 512), np.float32), weight_type=kind)
        for activations in (case.activations, np.sign(graphs.unpacked(case))[:7]):
            check(msgspec.structs.replace(case, activations=activations))


@pytest.mark.parametrize("kind", PRODUCT_TYPES)
def test_zeros_and_a_broken_row(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    case = product_case(np.random.default_rng(0), kind, rows=8, outputs=40, depth=512)
    for zero in ("activations", "weights"):
        nothing = msgspec.structs.replace(case, **{zero: np.zeros_like(getattr(case, zero))})
        assert not compute_product(library, graphs, nothing).any()
    healthy, others = compute_product(library, graphs, case), np.arange(8) != 3
    for broken in (np.nan, np.inf, -np.inf):
        case.activations[3, 300] = broken
        found = compute_product(library, graphs, case)
        assert not np.isfinite(found[3]).any()
        assert np.array_equal(found[others], healthy[others])


def test_scratch_grows_where_ggml_has_too_little(check: Check) -> None:
    """ggml plans only the scratch for Q8_0. Sums take more, and each product here is larger than the last."""
    random = np.random.default_rng(0)
    for rows in (1, 40, 400):
        check(product_case(random, GgmlType.Q8_0, rows=rows, outputs=32, depth=1024))


@pytest.mark.parametrize("kind", _TYPES_OF_EACH_LOOP)
def test_experts(check: Check, kind: GgmlType) -> None:
    """Tokens have four of 12 experts each. In the last case one expert has both slots of all tokens."""
    for tokens, has_own_rows in ((1, False), (3, True), (40, False)):
        random = np.random.default_rng(tokens)
        experts = choose_experts(random, tokens=tokens, slots=4, num_experts=12)
        check(expert_case(random, kind, experts, num_experts=12, has_own_rows=has_own_rows))
    check(expert_case(random, kind, np.full((70, 2), 3, np.int32), num_experts=4))


@pytest.mark.parametrize("has_own_rows", [False, True])
@pytest.mark.parametrize(
    ("tokens", "slots", "num", "outputs", "depth"),
    [(1, 1, 1, 32, 256), (2, 8, 8, 33, 256), (7, 1, 3, 100, 768), (150, 2, 3, 64, 512), (9, 3, 64, 47, 256)],
)
def test_shapes_of_experts(
    check: Check, tokens: int, slots: int, num: int, outputs: int, depth: int, has_own_rows: bool
) -> None:
    random = np.random.default_rng(tokens)
    shape = {"num_experts": num, "outputs": outputs, "depth": depth}
    experts = choose_experts(random, tokens=tokens, slots=slots, num_experts=num)
    check(expert_case(random, GgmlType.Q4_K, experts, has_own_rows=has_own_rows, **shape))


@pytest.mark.parametrize("kind", _TYPES_OF_EACH_LOOP)
def test_a_token_is_independent(library: KernelLibrary, graphs: GgmlGraphs, kind: GgmlType) -> None:
    """Results are equal to the last bit, also to those of each expert's product alone."""
    random = np.random.default_rng(0)
    experts = choose_experts(random, tokens=50, slots=3, num_experts=8)
    case = expert_case(random, kind, experts, num_experts=8, has_own_rows=True)
    together = compute_product(library, graphs, case)
    for first, last in ((0, 1), (1, 3), (3, 50)):
        alone = msgspec.structs.replace(
            case, activations=case.activations[first:last], experts=experts[first:last]
        )
        assert np.array_equal(compute_product(library, graphs, alone), together[first:last])
    for expert in (0, 7):
        plain = msgspec.structs.replace(
            case, weights=case.weights[expert], activations=case.activations[experts == expert], experts=None
        )
        assert np.array_equal(compute_product(library, graphs, plain), together[experts == expert])


@pytest.mark.parametrize("number", [-1, 5, 2**31 - 1, -(2**31)])
def test_an_unknown_expert_gives_zeros(library: KernelLibrary, graphs: GgmlGraphs, number: int) -> None:
    random = np.random.default_rng(0)
    experts = choose_experts(random, tokens=6, slots=2, num_experts=5)
    case = expert_case(random, GgmlType.Q8_0, experts, num_experts=5)
    expected = compute_product(library, graphs, case)
    expected[2, 1] = expected[4, 0] = 0
    experts[2, 1] = experts[4, 0] = number
    assert np.array_equal(compute_product(library, graphs, case), expected)


@pytest.mark.parametrize(
    ("batches", "matrices", "rows"),
    [
        *(((number,), 3, rows) for number in (3, 6) for rows in (1, 20)),  # a matrix for each, or for several
        *(((16,), 1, 1), ((2,), 1, 3), ((2, 4), 1, 1), ((3, 2), 1, 5)),  # as recurrent layers
    ],
)
def test_batches(
    check: Check,
    library: KernelLibrary,
    graphs: GgmlGraphs,
    batches: tuple[int, ...],
    matrices: int,
    rows: int,
) -> None:
    random, num_rows = np.random.default_rng(0), math.prod(batches) * rows
    plain = product_case(random, GgmlType.Q4_K, rows=num_rows, outputs=matrices * 40, depth=512)
    case = msgspec.structs.replace(plain, activations=plain.activations.reshape(*batches, rows, 512))
    if matrices > 1:
        check(msgspec.structs.replace(case, weights=plain.weights.reshape(matrices, 40, -1)))
    else:
        found = compute_product(library, graphs, case)
        assert np.array_equal(found.reshape(num_rows, 40), compute_product(library, graphs, plain))
