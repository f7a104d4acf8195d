"""Counts are exact at Prometheus' bounds; quantiles are approximate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.observe.ended import BOUNDS_S, Distribution

SECONDS = st.floats(min_value=0.0002, max_value=1800) | st.sampled_from(BOUNDS_S)


def distribution_of(*values: float) -> Distribution:
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    return distribution


@given(st.lists(SECONDS | st.sampled_from([0.0, 1e-9, 1e6])))
def test_figures_for_prometheus_are_exact(values: list[float]) -> None:
    distribution = distribution_of(*values)
    expected = [(bound, sum(value <= bound for value in values)) for bound in BOUNDS_S]
    assert list(distribution.cumulative()) == expected
    assert distribution.num == len(values)
    assert abs(distribution.sum_s - sum(values)) <= 1e-6 * (1 + sum(values))


@given(st.lists(SECONDS, min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_quantiles_are_approximate(values: list[float], share: float) -> None:
    ordered = sorted(values)
    exact = next(v for i, v in enumerate(ordered, start=1) if i >= share * len(values))
    found = distribution_of(*values).quantile_s(share)
    assert found is not None
    assert exact / 1.4 <= found <= exact * 1.4


@given(st.lists(SECONDS), st.lists(SECONDS))
def test_merging_is_adding(first: list[float], second: list[float]) -> None:
    merged, together = distribution_of(*first), distribution_of(*first, *second)
    merged.merge(distribution_of(*second))
    assert list(merged.cumulative()) == list(together.cumulative())
    assert merged.quantile_s(0.5) == together.quantile_s(0.5)


def test_an_empty_distribution_and_repeated_values() -> None:
    distribution = Distribution()
    assert (distribution.mean_s, distribution.quantile_s(0.5), distribution.num) == (None, None, 0)
    distribution.add(0.02, 5)
    assert (distribution.num, distribution.mean_s) == (5, 0.02)
