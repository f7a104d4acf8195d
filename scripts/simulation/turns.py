"""Requests of a simulation: turns of sessions, read from a file or made up, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import msgspec


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, and a line of a trace in JSON. It holds lengths of texts, and names of equal ones."""

    at_s: float
    """Arrival, from the trace's begin, or from the end of the session's previous turn."""
    session: str
    shared: tuple[tuple[str, int], ...] = ()
    """Texts at the begin of the session's prompt, such as (system-3, 800): name and tokens. Equal names
    are equal texts."""
    tokens: int
    """Tokens of the prompt after those, and after all previous turns with their answers."""
    output: int
    batch: bool = False
    fresh: bool = False
    """True if its prompt does not begin with the previous turns."""
    key: str = ""


def read_trace(path: Path) -> list[Turn]:
    with path.open("rb") as lines:
        return [msgspec.json.decode(line, type=Turn) for line in lines if line.strip()]


def write_trace(path: Path, turns: Iterable[Turn]) -> None:
    with path.open("wb") as file:
        file.writelines(msgspec.json.encode(turn) + b"\n" for turn in turns)


def sessions(turns: Iterable[Turn]) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = {}
    for turn in turns:
        found.setdefault(turn.session, []).append(turn)
    return found


class Texts:
    """Makes the tokens of texts that have a name and a length only. There are 256 different tokens,
    because Python caches these numbers and so a prompt takes little memory."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._shared: dict[tuple[str, int], tuple[int, ...]] = {}

    def shared(self, name: str, length: int) -> tuple[int, ...]:
        if (name, length) not in self._shared:
            self._shared[name, length] = self.own(name, length)
        return self._shared[name, length]

    def own(self, name: str, length: int) -> tuple[int, ...]:
        return tuple(Random(f"{self._seed}/{name}").randbytes(length))


def prompts(turns: Iterable[Turn], texts: Texts) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    before: tuple[int, ...] = ()
    for number, turn in enumerate(turns):
        begin = tuple(token for text in turn.shared for token in texts.shared(*text))
        own = texts.own(f"{turn.session}/{number}/asked", turn.tokens)
        answer = texts.own(f"{turn.session}/{number}/answer", turn.output)
        prompt = begin + own if turn.fresh else before + begin + own
        before = prompt + answer
        yield prompt, answer
