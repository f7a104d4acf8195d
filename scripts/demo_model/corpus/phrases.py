"""Choices written into a text: `{a|b}`, also inside of one another, and the turns of a short conversation."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from demo_model.corpus.example import Role, Turn

_CHOICE = re.compile(r"\{([^{}]*)\}")


def choose(rng: random.Random, text: str) -> str:
    """The text with every `{a|b}` decided."""
    while True:
        text, count = _CHOICE.subn(lambda match: rng.choice(match[1].split("|")), text)
        if count == 0:
            return text


def exchange(*texts: str, system: str = "") -> tuple[Turn, ...]:
    """User and assistant in turns, behind a system text if there is one."""
    roles = (Role.USER, Role.ASSISTANT)
    turns = tuple(Turn(roles[place % 2], text) for place, text in enumerate(texts))
    return (Turn(Role.SYSTEM, system), *turns) if system else turns


def some_system(rng: random.Random, texts: Sequence[str], share: float = 0.15) -> str:
    """One of the system texts in `share` of the cases, else none."""
    return rng.choice(texts) if rng.random() < share else ""


HELPERS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Answer briefly.",
    "You answer in simple English.",
    "Be short and exact.",
    "You are a patient teacher.",
)
