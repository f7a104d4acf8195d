"""Which rows are trained on when. A position is a number: the same seed gives the same batches after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demo_model.rows import Rows

_POOL = 4096
"""Rows that are sorted by length together: enough for little padding, few enough to mix the kinds."""
_LENGTH_STEP = 8


@dataclass(frozen=True)
class Batch:
    """Tokens and those that follow them [rows, length]. `weights` tell what learning each is worth."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding."""
        return int((self.weights >= 0).sum())


class Batches:
    """Micro-batches of up to `tokens` tokens with padding, rows of like length together, endlessly."""

    def __init__(self, rows: Rows, *, tokens: int, seed: int, prompt_weight: float) -> None:
        self._rows, self._tokens, self._seed, self._prompt_weight = rows, tokens, seed, prompt_weight

    def __getitem__(self, position: int) -> Batch:
        epoch = 0
        while position >= len(plan := self._plan(epoch)):
            position -= len(plan)
            epoch += 1
        return batch_of(self._rows, plan[position], self._prompt_weight)

    @lru_cache(maxsize=2)  # noqa: B019 - one object for the whole run
    def _plan(self, epoch: int) -> list[NDArray[np.int64]]:
        generator = np.random.default_rng([self._seed, epoch])
        order = generator.permutation(len(self._rows.kinds))
        pools = (order[first : first + _POOL] for first in range(0, len(order), _POOL))
        return [batch for pool in pools for batch in self._batches(pool, generator)]

    def _batches(
        self, pool: NDArray[np.int64], generator: np.random.Generator
    ) -> Iterator[NDArray[np.int64]]:
        lengths = self._rows.lengths
        ordered = pool[np.argsort(lengths[pool], kind="stable")]
        cut = list(_cut(ordered, padded(lengths[ordered] - 1), self._tokens))
        return iter([cut[index] for index in generator.permutation(len(cut))])


def _cut(ordered: NDArray[np.int64], lengths: NDArray[np.int64], tokens: int) -> Iterator[NDArray[np.int64]]:
    """Runs of rows, which come shortest first, of up to `tokens` tokens each with padding."""
    first = 0
    for index in range(1, len(ordered) + 1):
        if index == len(ordered) or (index + 1 - first) * lengths[index] > tokens:
            yield ordered[first:index]
            first = index


def padded(length: NDArray[np.int64]) -> NDArray[np.int64]:
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP


def batch_of(rows: Rows, chosen: NDArray[np.int64], prompt_weight: float) -> Batch:
    longest = int(padded(np.asarray(rows.lengths[chosen].max() - 1)))
    inputs = np.zeros((len(chosen), longest), np.int64)
    targets = np.zeros((len(chosen), longest), np.int64)
    weights = np.full((len(chosen), longest), -1.0, np.float32)
    for line, row in enumerate(chosen):
        start, end = rows.starts[row], rows.starts[row + 1]
        length = end - start - 1
        inputs[line, :length] = rows.tokens[start : end - 1]
        targets[line, :length] = rows.tokens[start + 1 : end]
        weights[line, :length] = np.where(rows.learn[start + 1 : end], 1.0, prompt_weight)
    return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(weights))
