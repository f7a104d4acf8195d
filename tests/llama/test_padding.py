"""Throw-away tokens change nothing but the time that a step takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_cpu_server.contract.step import Span, Step
from openai_cpu_server.llama.backend import LlamaBackend
from tests.llama.driver import TEXT, TOLERANCE, feed, holding, loaded, opened


def decoded(backend: LlamaBackend, padding: int, count: int = 12) -> tuple[list[int], list[float]]:
    """Greedy tokens and their log-probabilities, padding in every step."""
    tokens, found = [], []
    with opened(backend, 1, TEXT[:30], top_logprobs=0):
        span = Span(1, 0, TEXT[:30], True)
        for position in range(30, 30 + count):
            result = backend.execute(Step(spans=(span,), padding=padding))
            assert result.padding == padding
            sample = result.samples[1]
            assert sample.logprob is not None
            tokens.append(sample.token)
            found.append(sample.logprob.logprob)
            span = Span(1, position, (sample.token,), True)
    return tokens, found


@pytest.mark.parametrize("padding", [1, 15, 34])
def test_padding_changes_results_by_rounding_only(backend: LlamaBackend, padding: int) -> None:
    tokens, logprobs = decoded(backend, padding)
    expected_tokens, expected_logprobs = decoded(backend, 0)
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=TOLERANCE)


def test_targets_and_steps_without_outputs_can_be_padded(backend: LlamaBackend) -> None:
    with opened(backend, 0, TEXT[:9]), opened(backend, 1, TEXT[:9]):
        silent = Span(0, 0, TEXT[:9], False)
        assert backend.execute(Step(spans=(silent,), padding=7)).samples == {}
        span = Span(1, 0, TEXT[:9], True, TEXT[1:9])
        result = backend.execute(Step(spans=(span,), padding=7))
    assert (list(result.samples), len(result.scores[1])) == ([1], 8)


def test_padding_gives_its_cells_back_and_is_left_out_where_the_pool_is_full(tiny: Path) -> None:
    """After each of these steps the pool of 256 is exactly full, or the next one would not fit."""
    with loaded(tiny, kv_tokens=256) as backend:
        with holding(backend, 0, TEXT[:200]):
            for position in range(200, 240):
                spans = (Span(0, position, TEXT[position : position + 1], False),)
                backend.execute(Step(spans=spans, padding=16))
            feed(backend, 0, 240, TEXT[:16])
        results = []
        for padding in (12, 0):
            with holding(backend, 0, TEXT), opened(backend, 1, TEXT):
                step = Step(spans=(Span(1, 0, TEXT[:4], True),), padding=padding)
                results.append(backend.execute(step))
    assert results[0] == results[1]
    assert results[0].padding == 0
