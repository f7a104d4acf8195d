"""A set from which some can be drawn at random without looking at all."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random


class Pool:
    """Names in any order. All methods take the same time, however many there are."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = list(dict.fromkeys(names))
        self._places = {name: place for place, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, name: str) -> None:
        if name not in self._places:
            self._places[name] = len(self._names)
            self._names.append(name)

    def discard(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[place] = last
            self._places[last] = place

    def draw(self, random: Random, num: int) -> list[str]:
        """So many different ones, or all if there are no more."""
        return random.sample(self._names, min(num, len(self._names)))
