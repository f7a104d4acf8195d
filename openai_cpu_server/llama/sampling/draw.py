"""One random draw per output position, which depends on (seed, position) only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.bounds import COLDEST
from openai_cpu_server.llama.cells.context import Logits

_MASK = 2**64 - 1
_BLOCK = 256
_FEW = 1024


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1). Neighbouring seeds and positions give as good as independent numbers."""
    return (_splitmix64(_splitmix64(seed) + position) >> 11) * 2.0**-53


def _splitmix64(state: int) -> int:
    """The 64-bit mixer of Steele, Lea and Flood (2014)."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def draw(logits: Logits, temperature: float, chance: float) -> int:
    """Index into `logits` at the quantile `chance` of their softmax at `temperature`.

    `logits` may hold -inf (never drawn), but its largest must be finite. A temperature below `COLDEST` counts
    as that.
    """
    if len(logits) <= _FEW:
        return _one_of_a_few(logits.astype(np.float64), temperature, chance)
    scale = np.float32(max(temperature, COLDEST))
    with np.errstate(over="ignore"):  # what a cold division sends to -inf has weight 0
        weights = np.exp((logits - logits.max()) / scale)
    return _index_at(weights, chance)


def _one_of_a_few(logits: npt.NDArray[np.float64], temperature: float, chance: float) -> int:
    """The same draw for few tokens, with half of the overhead. Nothing overflows float32 here."""
    weights = np.exp((logits - logits.max()) / max(temperature, COLDEST))
    sums = weights.cumsum()
    return int(sums.searchsorted(min(chance * sums[-1], np.nextafter(sums[-1], 0)), "right"))


def _index_at(weights: Logits, chance: float) -> int:
    """The first index at which the cumulated weight exceeds `chance` of the whole.

    Cumulated in two levels: sums of blocks, then inside one of them (20 times faster than one `cumsum`).
    """
    starts = np.arange(0, len(weights), _BLOCK)
    sums = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
    goal = min(chance * sums[-1], np.nextafter(sums[-1], 0))
    block = int(sums.searchsorted(goal, "right"))
    before = sums[block - 1] if block else 0.0
    first = block * _BLOCK
    inside = weights[first : first + _BLOCK].cumsum(dtype=np.float64)
    index = int(inside.searchsorted(goal - before, "right"))
    if index == len(inside):  # the two levels round differently
        index = int(np.flatnonzero(weights[first : first + _BLOCK])[-1])
    return first + index
