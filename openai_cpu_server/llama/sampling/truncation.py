"""Top-k, typical, top-p and min-p: llama.cpp's samplers in its order, on those tokens that matter."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.llama.bindings import llama_cpp
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


_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_MIN_KEEP = 1
_NEGLIGIBLE = 80.0
"""Logits this far below the largest have a probability under 1e-34.
`typical` would compute 0 * log(0) on them."""


_ROUNDING = 1e-3


class KeptCandidates(NamedTuple):
    tokens: Tokens
    logits: Logits


class Candidates:
    """Scratch memory: `llama_token_data` for a whole vocabulary. All chains share it, one at a time."""

    def __init__(self, vocab_size: int) -> None:
        assert _CANDIDATE.itemsize == ctypes.sizeof(llama_cpp.llama_token_data)
        self._records = np.zeros(vocab_size, _CANDIDATE)
        self._data = self._records.ctypes.data_as(llama_cpp.llama_token_data_p)

    def narrowed_by(self, chain: object, tokens: Tokens, logits: Logits) -> KeptCandidates:
        """The tokens that a sampler chain leaves of these, and their logits, as copies."""
        count = len(tokens)
        self._records["id"][:count] = tokens
        self._records["logit"][:count] = logits[tokens]
        array = llama_cpp.llama_token_data_array(self._data, count, -1, False)
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
        left = self._records[: array.size]
        return KeptCandidates(left["id"].copy(), left["logit"].copy())


class Truncation:
    """A request's `llama_sampler` chain, freed with the request."""

    def __init__(self, sampling: Sampling, candidates: Candidates) -> None:
        self._candidates = candidates
        self._sampling = sampling
        self._chain: object | None = llama_cpp.llama_sampler_chain_init(
            llama_cpp.llama_sampler_chain_default_params()
        )
        for sampler in _samplers(sampling):
            llama_cpp.llama_sampler_chain_add(self._chain, sampler)

    def apply(self, logits: Logits) -> KeptCandidates:
        """(vocabulary,), -inf where forbidden -> the tokens that are left, at least one, and their logits."""
        assert self._chain is not None, "the chain is freed"
        return self._candidates.narrowed_by(self._chain, _seen(self._sampling, logits), logits)

    def close(self) -> None:
        chain, self._chain = self._chain, None
        if chain is not None:
            llama_cpp.llama_sampler_free(chain)


def truncates(sampling: Sampling) -> bool:
    return sampling.top_k is not None or sampling.typical_p < 1 or sampling.top_p < 1 or sampling.min_p > 0


def _seen(sampling: Sampling, logits: Logits) -> Tokens:
    """The tokens that the first active sampler of the chain can keep."""
    if sampling.top_k is not None:
        tokens = of_the_best(logits, sampling.top_k)
        return tokens[logits[tokens] > _negligible(logits)] if sampling.typical_p < 1 else tokens
    if sampling.typical_p < 1:
        return above(logits, _negligible(logits))
    if sampling.top_p < 1:
        return nucleus(logits, sampling.top_p)
    return above(logits, _below(logits, _ROUNDING - math.log(sampling.min_p)))


def _negligible(logits: Logits) -> float:
    return _below(logits, _NEGLIGIBLE)


def _below(logits: Logits, depth: float) -> float:
    """So far below the largest logit, and below it in any case: large float32 have no such small steps."""
    largest = logits.max()
    return float(min(largest - np.float32(depth), np.nextafter(largest, np.float32(-np.inf))))


def _samplers(sampling: Sampling) -> list[object]:
    """The native samplers, which the chain owns once they are added.
    An inactive parameter changes nothing."""
    top_k = [] if sampling.top_k is None else [llama_cpp.llama_sampler_init_top_k(sampling.top_k)]
    is_nucleus = sampling.top_k is None and sampling.typical_p >= 1  # `_seen` has cut it out already
    return [
        *top_k,
        llama_cpp.llama_sampler_init_typical(sampling.typical_p, _MIN_KEEP),
        llama_cpp.llama_sampler_init_top_p(1.0 if is_nucleus else sampling.top_p, _MIN_KEEP),
        llama_cpp.llama_sampler_init_min_p(sampling.min_p, _MIN_KEEP),
    ]
