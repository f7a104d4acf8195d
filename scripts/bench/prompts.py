"""Prompts of exact lengths, from token ids that every vocabulary has, or from words.
Equal seeds give equal prompts."""

from __future__ import annotations

import random
from pathlib import Path

_WORDS = Path(__file__).resolve().parents[1] / "random_model" / "words.txt"
"""Common English, the most frequent first."""
_NUM_WORDS = 300
_FIRST_TOKEN, _LAST_TOKEN = 300, 999
"""Ids behind control and byte tokens, within the smallest vocabulary that make_model.py writes."""


def random_tokens(count: int, *seed: object) -> tuple[int, ...]:
    """Random tokens. Two different seeds share no long prefix."""
    draw = random.Random(repr(seed))
    return tuple(draw.randint(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(count))


def about(count: int, *seed: object) -> int:
    """A length within 10 % of `count`, at least 1."""
    return max(1, round(count * random.Random(repr(seed)).uniform(0.9, 1.1)))


def random_words(count: int, *seed: object) -> str:
    """Text that every tokenizer turns into at least `count` tokens."""
    draw = random.Random(repr(seed))
    return " ".join(draw.choices(_WORDS.read_text(encoding="utf-8").split()[:_NUM_WORDS], k=count))
