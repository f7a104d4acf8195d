"""What the corpus is made of: conversations and plain texts, each made from a random generator."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


class Split(enum.Enum):
    """Held-out examples: the same kinds, with names, words and combinations that training never shows."""

    TRAIN = "train"
    HELD_OUT = "held_out"


class Role(enum.Enum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class Turn:
    """An assistant's turn is text, or calls."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Example:
    """One document. `text` is plain text; else it is the conversation in `turns`."""

    kind: str
    turns: tuple[Turn, ...] = ()
    text: str | None = None
    tools: tuple[Mapping[str, object], ...] = ()
    """OpenAI's tool objects: {"type": "function", "function": {"name", "description", "parameters"}}."""
    expected: Mapping[str, object] = field(default_factory=dict)
    """What an answer to the last user (or tool) turn is checked against; its keys depend on the kind."""


Maker = Callable[[random.Random, Split], Example]
"""Writes one example. The same state of the generator gives the same example, on any machine."""
