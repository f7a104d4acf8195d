"""What is asked in a simulation: turns of sessions, read from a file or made up, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import msgspec


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request; as a line of JSON it is a trace's. Only the lengths of texts are told, and which are
    equal."""

    at_s: float
    """When it comes: from the trace's begin, or from the end of the turn before it in its session."""
    session: str
    """Turns of one session come one after the other, in the order of the file."""
    shared: tuple[tuple[str, int], ...] = ()
    """Texts at the begin of the session's prompt, such as (system-3, 800): name and tokens. Equal names are
    equal texts."""
    tokens: int
    """Of the prompt, behind those, and behind all turns before with their answers."""
    output: int
    """Tokens of the answer."""
    batch: bool = False
    fresh: bool = False
    """Its prompt does not begin with the turns before."""
    key: str = ""
    """Whose request it is: nothing is shared with other keys."""


def read_trace(path: Path) -> list[Turn]:
    """One turn a line."""
    with path.open("rb") as lines:
        return [msgspec.json.decode(line, type=Turn) for line in lines if line.strip()]


def write_trace(path: Path, turns: Iterable[Turn]) -> None:
    with path.open("wb") as file:
        file.writelines(msgspec.json.encode(turn) + b"\n" for turn in turns)


def sessions(turns: Iterable[Turn]) -> dict[str, list[Turn]]:
    """The turns of each session, in their order."""
    found: dict[str, list[Turn]] = {}
    for turn in turns:
        found.setdefault(turn.session, []).append(turn)
    return found


class Texts:
    """Makes the tokens of texts that are known by name and length only.

    There are 256 different tokens: Python keeps these numbers anyway, so that a prompt takes little memory.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._shared: dict[tuple[str, int], tuple[int, ...]] = {}

    def shared(self, name: str, length: int) -> tuple[int, ...]:
        """The same tokens for the same name."""
        if (name, length) not in self._shared:
            self._shared[name, length] = self.own(name, length)
        return self._shared[name, length]

    def own(self, name: str, length: int) -> tuple[int, ...]:
        return tuple(Random(f"{self._seed}/{name}").randbytes(length))


def prompts(turns: Iterable[Turn], texts: Texts) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompt and answer of each turn of a session."""
    before: tuple[int, ...] = ()
    for number, turn in enumerate(turns):
        begin = tuple(token for text in turn.shared for token in texts.shared(*text))
        own = texts.own(f"{turn.session}/{number}/asked", turn.tokens)
        answer = texts.own(f"{turn.session}/{number}/answer", turn.output)
        prompt = begin + own if turn.fresh else before + begin + own
        before = prompt + answer
        yield prompt, answer
