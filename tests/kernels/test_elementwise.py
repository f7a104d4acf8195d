"""Small operations between products of experts, against numpy."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import pytest

from openai_cpu_server.kernels.graphs import Computing, Floats, GgmlGraphs
from openai_cpu_server.kernels.library import Kernel, KernelLibrary
from tests.kernels.library import compute_with

_ALPHA, _LIMIT = 1.702, 7.0  # gpt-oss'
_SHAPES = [(1, 1, 16), (3, 4, 64), (2, 1, 5, 1024)]
_FOR_SEVERAL_ROWS = [(1, 4, 1), (3, 1, 1), (1, 1, 1)]


def numbers(*shape: int) -> Floats:
    return 5 * np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def compute_by_kernel(library: KernelLibrary, operation: AbstractContextManager[Computing]) -> Floats:
    with operation as compute:
        found, *others = (
            compute_with(library, Kernel.ELEMENTWISE, compute, threads) for threads in (1, 2, 3)
        )
    assert all(np.array_equal(found, other, equal_nan=True) for other in others)
    return found


def gate(gates: Floats, ups: Floats) -> Floats:
    x, y = np.minimum(gates.astype(float), _LIMIT), np.clip(ups.astype(float), -_LIMIT, _LIMIT)
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-_ALPHA * x)) * (y + 1))


def gelu(x: Floats) -> Floats:
    wide = x.astype(float)
    return np.asarray(wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))))


@pytest.mark.parametrize(
    ("shape", "factors"),
    [*((shape, (*shape[:-1], 1)) for shape in _SHAPES), *(((3, 4, 64), own) for own in _FOR_SEVERAL_ROWS)],
)
def test_rows_are_scaled_by_their_own_or_a_shared_factor(
    library: KernelLibrary, graphs: GgmlGraphs, shape: tuple[int, ...], factors: tuple[int, ...]
) -> None:
    rows, row_factors = numbers(*shape), numbers(*factors)
    assert np.array_equal(compute_by_kernel(library, graphs.scaling(rows, row_factors)), rows * row_factors)


ENDS = {
    "gating": (0, 7, 7.5, 1e30, -7, -50, -1000, -1e30),
    "gating_by_gelu": (0, 1e-30, 3, 10, 1e18, -1e-30, -3, -9, -10, -50, -1e18),
}


@pytest.mark.parametrize("name", ENDS)
def test_gates_of_extreme_values_and_nan(library: KernelLibrary, graphs: GgmlGraphs, name: str) -> None:
    more = {"alpha": _ALPHA, "limit": _LIMIT} if name == "gating" else {}

    def found(gates: Floats, ups: Floats) -> Floats:
        return compute_by_kernel(library, getattr(graphs, name)(gates, ups, **more))

    def is_exact(gates: Floats, ups: Floats, rtol: float = 1e-5) -> bool:
        exact = gate(gates, ups) if more else gelu(gates) * ups
        return np.allclose(found(gates, ups), exact, rtol=rtol, atol=1e-6)

    for shape in _SHAPES:
        assert is_exact(numbers(*shape), numbers(*shape)[::-1].copy())
    ends = np.array(ENDS[name], np.float32)
    gates, ups = (np.ascontiguousarray(one) for one in np.meshgrid(np.resize(ends, 16), ends))
    assert is_exact(gates, ups, 1e-5 if more else 1e-4)
    gates[0, 0] = ups[1, 1] = np.nan
    assert np.argwhere(np.isnan(found(gates, ups))).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("shape", [*_SHAPES, (7, 3, 80)])
@pytest.mark.parametrize("weight_dims", [None, 1, 2])
def test_rms_norm(
    library: KernelLibrary, graphs: GgmlGraphs, shape: tuple[int, ...], weight_dims: int | None
) -> None:
    """Weights have the last `weight_dims` dimensions of the rows."""
    rows, weights = numbers(*shape), None if weight_dims is None else numbers(*shape[-weight_dims:])
    found = compute_by_kernel(library, graphs.normalising(rows, weights, 1e-3))
    expected = rows / np.sqrt((rows.astype(float) ** 2).mean(-1, keepdims=True) + 1e-3)
    assert np.allclose(found, expected if weights is None else expected * weights, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e15, np.nan])
def test_norms_of_extreme_values(library: KernelLibrary, graphs: GgmlGraphs, value: float) -> None:
    rows = np.full((2, 64), value, np.float32)
    found = compute_by_kernel(library, graphs.normalising(rows, None, 1e-6))
    expected = rows / np.sqrt(rows.astype(float) ** 2 + 1e-6)
    assert np.allclose(found, expected, rtol=2e-6, atol=0, equal_nan=True)
