"""Byte-pair encoding learnt from counted words. Pure; ties are broken by spelling."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

Pair = tuple[str, str]


def learn_merges(words: Mapping[str, int], count: int) -> list[Pair]:
    """Up to `count` merges, most frequent first, until every word is whole. Two may make one piece."""
    learning = _Learning(words)
    return [pair for _, pair in zip(range(count), learning.merges(), strict=False)]


class _Learning:
    def __init__(self, words: Mapping[str, int]) -> None:
        self._words = [list(word) for word in words]
        self._counts = list(words.values())
        self._pairs: Counter[Pair] = Counter()
        self._places: defaultdict[Pair, set[int]] = defaultdict(set)
        for index in range(len(self._words)):
            self._add(index)
        self._queue = [(-count, pair) for pair, count in self._pairs.items()]
        heapq.heapify(self._queue)

    def merges(self) -> Iterator[Pair]:
        while self._queue:
            negative, pair = heapq.heappop(self._queue)
            # Counts in the queue may be old: every change puts the pair there anew.
            if -negative == self._pairs[pair] > 0:
                yield pair
                self._merge(pair)

    def _merge(self, pair: Pair) -> None:
        changed: set[Pair] = set()
        for index in list(self._places[pair]):
            changed.update(pairwise(self._words[index]))
            self._remove(index)
            self._words[index] = merged(self._words[index], pair)
            self._add(index)
            changed.update(pairwise(self._words[index]))
        for other in changed:
            heapq.heappush(self._queue, (-self._pairs[other], other))

    def _add(self, index: int) -> None:
        for pair in pairwise(self._words[index]):
            self._pairs[pair] += self._counts[index]
            self._places[pair].add(index)

    def _remove(self, index: int) -> None:
        for pair in pairwise(self._words[index]):
            self._pairs[pair] -= self._counts[index]
            self._places[pair].discard(index)


def merged(pieces: list[str], pair: Pair) -> list[str]:
    """The word with every occurrence of the pair joined, from the left."""
    joined: list[str] = []
    index = 0
    while index < len(pieces):
        if tuple(pieces[index : index + 2]) == pair:
            joined.append(pieces[index] + pieces[index + 1])
            index += 2
        else:
            joined.append(pieces[index])
            index += 1
    return joined
