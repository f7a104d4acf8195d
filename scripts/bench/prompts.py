"""Prompts of exact lengths: the protocol of workloads, and random ones. Equal seeds give equal prompts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Protocol

_WORDS = Path(__file__).resolve().parents[1] / "random_model" / "words.txt"
_NUM_WORDS = 300
_FIRST_TOKEN, _LAST_TOKEN = 300, 999
"""Ids after control and byte tokens, within the smallest vocabulary that make_model.py writes."""


class Prompts(Protocol):
    def text(self, count: int, *seed: object) -> tuple[int, ...]: ...

    def question(self, count: int, *seed: object) -> tuple[int, ...]:
        """Return a user's message. Two different seeds share no long prefix."""


class RandomPrompts:
    """Random tokens, for models of random weights, to which all tokens are alike."""

    def text(self, count: int, *seed: object) -> tuple[int, ...]:
        return random_tokens(count, *seed)

    def question(self, count: int, *seed: object) -> tuple[int, ...]:
        return random_tokens(count, *seed)


def random_tokens(count: int, *seed: object) -> tuple[int, ...]:
    draw = random.Random(repr(seed))
    return tuple(draw.randint(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(count))


def about(count: int, *seed: object) -> int:
    """Return a length within 10 % of `count`, at least 1."""
    return max(1, round(count * random.Random(repr(seed)).uniform(0.9, 1.1)))


def random_words(count: int, *seed: object) -> str:
    """Return text that is at least `count` tokens for every tokenizer."""
    draw = random.Random(repr(seed))
    return " ".join(draw.choices(_WORDS.read_text(encoding="utf-8").split()[:_NUM_WORDS], k=count))


_SHORT_TEXT_WORDS = """the weather is lovely today and we walk along a river to see boats pass while birds
sing""".split()  # noqa: SIM905


def short_texts(count: int) -> list[str]:
    words = _SHORT_TEXT_WORDS
    return [
        " ".join(words[(n * 7 + i * (1 + n % 5)) % len(words)] for i in range(4 + n % 9))
        for n in range(count)
    ]
