"""Finds what depends on other things of its kind, without recursion: chains of references may be long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def settled(
    start: K,
    known: dict[K, V],
    parts: Callable[[K], Sequence[K]],
    found: Callable[[K, list[V]], V],
    meanwhile: V,
) -> V:
    """The value of `start`, which `found` makes of the values of its parts. All values go to `known`.

    What depends on itself is taken for `meanwhile` while its own value is sought.
    """
    stack = [] if start in known else [_opened(start, known, parts, meanwhile)]
    while stack:
        key, needed = stack[-1]
        missing = next((part for part in needed if part not in known), None)
        if missing is not None:
            stack.append(_opened(missing, known, parts, meanwhile))
        else:
            known[key] = found(key, [known[part] for part in needed])
            stack.pop()
    return known[start]


def _opened(
    key: K, known: dict[K, V], parts: Callable[[K], Sequence[K]], meanwhile: V
) -> tuple[K, Sequence[K]]:
    known[key] = meanwhile
    return key, parts(key)
