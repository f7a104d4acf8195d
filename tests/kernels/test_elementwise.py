"""Small operations between products of experts, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import pytest

from openai_cpu_server.kernels.graphs import GgmlGraphs
from openai_cpu_server.kernels.library import Kernel, KernelLibrary
from openai_cpu_server.kernels.tensors import Computing, Floats

_ALPHA, _LIMIT = 1.702, 7.0
"""gpt-oss'."""
_SHAPES = [(1, 1, 16), (3, 4, 64), (2, 1, 5, 1024)]
_FOR_SEVERAL_ROWS = [(1, 4, 1), (3, 1, 1), (1, 1, 1)]


def numbers(*shape: int) -> Floats:
    return 5 * np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def computed(library: KernelLibrary, operation: AbstractContextManager[Computing]) -> Floats:
    """By the kernel, for sure, with any number of threads."""
    with operation as compute:
        num_done = library.num_done(Kernel.ELEMENTWISE)
        library.switch_on(Kernel.ELEMENTWISE)
        found, *others = (compute(threads) for threads in (1, 2, 3))
        library.switch_off(Kernel.ELEMENTWISE)
        assert library.num_done(Kernel.ELEMENTWISE) == num_done + 3
    assert all(np.array_equal(found, other, equal_nan=True) for other in others)
    return found


def gated(gates: Floats, ups: Floats) -> Floats:
    """As ggml defines it, in double precision."""
    x, y = np.minimum(gates.astype(float), _LIMIT), np.clip(ups.astype(float), -_LIMIT, _LIMIT)
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-_ALPHA * x)) * (y + 1))


def gelu(x: Floats) -> Floats:
    """The approximation that ggml uses too, in double precision."""
    wide = x.astype(float)
    return np.asarray(wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))))


@pytest.mark.parametrize(
    ("shape", "factors"),
    [*((shape, (*shape[:-1], 1)) for shape in _SHAPES), *(((3, 4, 64), own) for own in _FOR_SEVERAL_ROWS)],
)
def test_rows_times_a_number_each_or_one_for_several(
    library: KernelLibrary, graphs: GgmlGraphs, shape: tuple[int, ...], factors: tuple[int, ...]
) -> None:
    rows, of_rows = numbers(*shape), numbers(*factors)
    assert np.array_equal(computed(library, graphs.scaling(rows, of_rows)), rows * of_rows)


class Gate(NamedTuple):
    by_kernel: Callable[[GgmlGraphs, Floats, Floats], AbstractContextManager[Computing]]
    exact: Callable[[Floats, Floats], Floats]
    ends: tuple[float, ...]
    rtol: float = 1e-5


GATES = {
    "clamped": Gate(
        lambda graphs, gates, ups: graphs.gating(gates, ups, alpha=_ALPHA, limit=_LIMIT),
        gated,
        (0, 7, 7.5, 1e30, -7, -50, -1000, -1e30),
    ),
    "gelu": Gate(
        lambda graphs, gates, ups: graphs.gating_by_gelu(gates, ups),
        lambda gates, ups: gelu(gates) * ups,
        (0, 1e-30, 3, 10, 1e18, -1e-30, -3, -9, -10, -50, -1e18),
        1e-4,
    ),
}


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_gates_also_at_the_ends_and_of_what_is_no_number(
    library: KernelLibrary, graphs: GgmlGraphs, gate: Gate
) -> None:
    for shape in _SHAPES:
        gates, ups = numbers(*shape), numbers(*shape)[::-1].copy()
        found = computed(library, gate.by_kernel(graphs, gates, ups))
        assert np.allclose(found, gate.exact(gates, ups), rtol=1e-5, atol=1e-6)
    ends = np.array(gate.ends, np.float32)
    gates, ups = (np.ascontiguousarray(one) for one in np.meshgrid(np.resize(ends, 16), ends))
    found = computed(library, gate.by_kernel(graphs, gates, ups))
    assert np.allclose(found, gate.exact(gates, ups), rtol=gate.rtol, atol=1e-6)
    gates[0, 0] = ups[1, 1] = np.nan
    found = computed(library, gate.by_kernel(graphs, gates, ups))
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("shape", [*_SHAPES, (7, 3, 80)])
@pytest.mark.parametrize("weights_of", [None, 1, 2])
def test_rows_over_the_root_of_their_mean_square(
    library: KernelLibrary, graphs: GgmlGraphs, shape: tuple[int, ...], weights_of: int | None
) -> None:
    """`weights_of`: how many of the sizes of the rows the weights have."""
    rows, weights = numbers(*shape), None if weights_of is None else numbers(*shape[-weights_of:])
    found = computed(library, graphs.normalising(rows, weights, 1e-3))
    expected = rows / np.sqrt((rows.astype(float) ** 2).mean(-1, keepdims=True) + 1e-3)
    assert np.allclose(found, expected if weights is None else expected * weights, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e15, np.nan])
def test_norms_at_the_ends(library: KernelLibrary, graphs: GgmlGraphs, value: float) -> None:
    rows = np.full((2, 64), value, np.float32)
    found = computed(library, graphs.normalising(rows, None, 1e-6))
    expected = rows / np.sqrt(rows.astype(float) ** 2 + 1e-6)
    assert np.allclose(found, expected, rtol=2e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("shapes", [((3, 4, 50), (3, 4, 1)), ((3, 4, 64), (3, 4, 64)), ((3, 64), (1, 64))])
def test_what_it_does_not_do_is_left_to_ggml(
    library: KernelLibrary, graphs: GgmlGraphs, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    rows, factors = (numbers(*shape) for shape in shapes)
    library.switch_on(Kernel.ELEMENTWISE)
    num_done = library.num_done(Kernel.ELEMENTWISE)
    with graphs.scaling(rows, factors) as compute:
        assert np.array_equal(compute(2), rows * factors)
    assert library.num_done(Kernel.ELEMENTWISE) == num_done
