"""Prompts of exact lengths. Equal seeds give equal prompts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Protocol

_WORDS = Path(__file__).resolve().parents[1] / "random_model" / "words.txt"
_NUM_WORDS = 300
_FIRST_TOKEN, _LAST_TOKEN = 300, 999
"""Ids after control and byte tokens, within make_model.py's smallest vocabulary."""


class Prompts(Protocol):
    def text(self, count: int, *seed: object) -> tuple[int, ...]: ...

    def question(self, count: int, *seed: object) -> tuple[int, ...]:
        """Return a message that shares no long prefix with those of other seeds."""


class RandomPrompts:
    """Random tokens, for models of random weights."""

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
    """Return text of at least `count` tokens in every tokenizer."""
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
