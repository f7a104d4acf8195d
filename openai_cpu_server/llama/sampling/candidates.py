"""Finds the tokens that a sampler chain has to look at: it sorts them, and sorting all takes milliseconds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from openai_cpu_server.llama.cells.context import Logits

Tokens = npt.NDArray[np.int32]

_GROUPS = 64
_DEPTHS = (8.0, 16.0)
"""A nucleus is looked for this far below the largest logit before all of the vocabulary is sorted."""


def above(logits: Logits, floor: float) -> Tokens:
    return np.flatnonzero(logits > floor).astype(np.int32)


def of_the_best(logits: Logits, count: int) -> Tokens:
    """The `count` best tokens, and perhaps others: the bests of groups bound the last of them from below."""
    width = len(logits) // _GROUPS
    if not 0 < count <= width:
        return above(logits, -math.inf)
    grouped = logits[: width * _GROUPS].reshape(_GROUPS, width)
    bests = grouped.max(axis=0)
    bound = np.partition(bests, width - count)[width - count]
    if bound == -math.inf:
        return above(logits, -math.inf)
    columns = np.flatnonzero(bests >= bound)  # the others have nothing, and need not be looked through
    rows, places = np.divmod(np.flatnonzero(grouped.take(columns, axis=1) >= bound), len(columns))
    behind = width * _GROUPS + np.flatnonzero(logits[width * _GROUPS :] >= bound)
    return np.concatenate((rows * width + columns[places], behind)).astype(np.int32)


def nucleus(logits: Logits, share: float) -> Tokens:
    """Top-p: the fewest tokens, at least one, whose probabilities reach that share together.

    Of equals at the edge the first ones. `logits` may hold -inf; the largest is finite.
    """
    weights = np.exp(logits - logits.max())
    wanted = share * weights.sum(dtype=np.float64)
    heaviest = np.sort(_holding(weights, wanted))[::-1]
    count = int(heaviest.cumsum(dtype=np.float64).searchsorted(wanted)) + 1
    least = heaviest[min(count, len(heaviest)) - 1]
    tokens = np.flatnonzero(weights >= least).astype(np.int32)
    excess = len(tokens) - count
    if excess <= 0:
        return tokens
    return np.delete(tokens, np.flatnonzero(weights[tokens] == least)[-excess:])


def _holding(weights: Logits, wanted: float) -> Logits:
    """The heaviest tokens that weigh as much as wanted: few, so that sorting them is cheap."""
    for depth in _DEPTHS:
        heavy = weights[weights > math.exp(-depth)]
        if heavy.sum(dtype=np.float64) >= wanted:
            return heavy
    return weights[weights > 0]
