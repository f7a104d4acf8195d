"""Prompts of exact lengths, made of token ids that every vocabulary has. Equal seeds, equal prompts."""

from __future__ import annotations

import random

_FIRST_TOKEN, _LAST_TOKEN = 300, 999
"""Beyond control and byte tokens, within the smallest vocabulary that make_model.py writes."""


def random_tokens(count: int, *seed: object) -> tuple[int, ...]:
    """Two different seeds share no prefix worth the name."""
    draw = random.Random(repr(seed))
    return tuple(draw.randint(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(count))


def about(count: int, *seed: object) -> int:
    """A length within 10 % of `count`, at least 1."""
    return max(1, round(count * random.Random(repr(seed)).uniform(0.9, 1.1)))
