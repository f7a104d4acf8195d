"""The tokens that a chain is shown hold all that it could leave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.llama.sampling.sampler import Scratch, Truncation, above, nucleus, of_the_best

LOGIT = st.floats(-40, 40, width=32) | st.sampled_from([0.0, 1.0, -np.inf])
LOGITS = hnp.arrays(np.float32, st.integers(1, 700), elements=LOGIT).filter(
    lambda found: bool(found.max() > -np.inf)
)

LARGE = np.random.default_rng(3).normal(0, 2.5, 152_000).astype(np.float32)
LARGE[1000:1020] += np.linspace(24, 12, 20, dtype=np.float32)


@given(LOGITS, st.integers(1, 40))
def test_the_best_are_among_them(logits: np.ndarray, count: int) -> None:
    found = logits[of_the_best(logits, count)]
    finite = np.sort(logits[logits > -np.inf])[::-1][:count]
    assert list(np.sort(found)[::-1][: len(finite)]) == list(finite)
    assert -np.inf not in found


def test_few_are_looked_at_where_there_are_many() -> None:
    assert 40 <= len(of_the_best(LARGE, 40)) < 120


@settings(max_examples=100)
@given(LOGITS, st.floats(0, 0.999))
def test_a_nucleus_has_its_share_and_no_token_too_many(logits: np.ndarray, share: float) -> None:
    found = nucleus(logits, share, Scratch(len(logits)))
    weights = np.exp(logits - logits.max())
    inside, whole = weights[found].sum(dtype=np.float64), weights.sum(dtype=np.float64)
    rounding = 1e-6 * whole
    assert len(found) == len(set(found)) >= 1
    assert inside >= share * whole - rounding
    assert len(found) == 1 or inside - weights[found].min() < share * whole + rounding
    outside = np.delete(weights, found)
    assert not len(outside) or outside.max() <= weights[found].min()


def test_of_equals_at_the_edge_the_first_are_taken() -> None:
    assert list(nucleus(np.zeros(10, np.float32), 0.3, Scratch(10))) == [0, 1, 2]
    assert list(nucleus(np.float32([0, 9, 0, 9, 9]), 0.6, Scratch(5))) == [1, 3]


@pytest.mark.parametrize("parameters", [{"top_p": 0.95}, {"top_p": 0.9999}, {"top_k": 50}, {"min_p": 0.02}])
def test_a_large_vocabulary_is_cut_as_by_a_plain_reference(parameters: dict[str, float]) -> None:
    sampling = Sampling(seed=1, **parameters)
    left = Truncation(sampling, Scratch(len(LARGE))).apply(LARGE)
    weights = np.exp(LARGE.astype(np.float64) - LARGE.max())
    order = np.argsort(-weights)
    if "top_p" in parameters:
        share = weights[order].cumsum() / weights.sum()
        count = int(share.searchsorted(parameters["top_p"])) + 1
    elif "top_k" in parameters:
        count = int(parameters["top_k"])
    else:
        count = int((weights >= parameters["min_p"]).sum())
    assert set(left.tokens) == set(order[:count])
    assert np.array_equal(left.logits, LARGE[left.tokens])


def test_nothing_is_above_the_highest() -> None:
    assert list(above(np.float32([1, 3, 2]), 1.0)) == [1, 2]
    assert not len(above(np.float32([1, 3, 2]), 3.0))
