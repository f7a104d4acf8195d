"""How the plots are written, and how they are read.

    = NAME              a new plot
    topics: A; B        what a request may call it
    title: T
    things: GROUP       where [thing] comes from; likewise `wild: GROUP`
    * TEXT              one sentence that every telling has; there are four of them
    - TEXT              a sentence or two that a longer telling may have, at this place
Behind a line's end, two spaces go on with it. In texts `{a|b}` is a choice, also inside of one another, and
`[slot]` is filled in by `cast.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Beat:
    text: str
    core: bool


@dataclass(frozen=True)
class Plot:
    name: str
    topics: tuple[str, ...]
    title: str
    beats: tuple[Beat, ...]
    groups: dict[str, str] = field(default_factory=dict)
    """Slot -> the group of words it is filled from."""

    @property
    def is_fable(self) -> bool:
        """Its heroes are animals."""
        return self.groups.get("wild") in ("fable", "fast")


def read_plots(text: str) -> list[Plot]:
    return [_read_plot(block) for block in re.split(r"^= ", text, flags=re.MULTILINE)[1:]]


def _read_plot(block: str) -> Plot:
    name, *lines = _whole_lines(block)
    heads = dict(line.split(": ", 1) for line in lines if line[0] not in "*-")
    beats = tuple(Beat(line[2:], core=line[0] == "*") for line in lines if line[0] in "*-")
    if sum(beat.core for beat in beats) != 4:
        raise ValueError(f"plot {name} must have four core sentences")
    topics = tuple(heads.pop("topics").split("; "))
    return Plot(name, topics, heads.pop("title"), beats, heads)


def _whole_lines(block: str) -> Iterator[str]:
    joined = re.sub(r"\n  +", " ", block)
    return (line.rstrip() for line in joined.split("\n") if line.strip())
