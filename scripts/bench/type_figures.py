"""What `scripts/type_table.py` is told about a type of weights with a type of cells."""

from __future__ import annotations

import msgspec

ROWS = (1, 8, 32)


class Speed(msgspec.Struct, frozen=True):
    tokens_per_s: tuple[float, ...]
    """For each of `ROWS`: sequences that decode together."""


class Quality(msgspec.Struct, frozen=True):
    mean_divergence: float
    """Kullback-Leibler divergence from the reference, in nats."""
    max_divergence: float
    perplexity: float
    reference_perplexity: float
    num_tokens: int
