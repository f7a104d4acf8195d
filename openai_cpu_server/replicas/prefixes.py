"""Which replica holds which beginnings of prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from openai_cpu_server.contract.replica import HeldUpdate

_GUESS_S = 60.0
"""So long a replica is thought to hold the prompt that was sent to it last, until it tells.

It tells when the request has ended: most have within a minute. One that takes longer is not found meanwhile
by others with its prompt, unless they come more often than that.
"""
_TOLD = float("inf")
"""In place of the time up to which a guess counts: it was told."""


class PrefixIndex:
    """By block, the replicas that hold it: those that have told so, and those that the prompt was sent to."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[str, float]] = {}
        """By block, until when each replica is thought to hold it."""
        self._held: dict[str, set[int]] = {}
        """By replica, all its blocks in `_holders`."""
        self._guesses: deque[tuple[float, str, Sequence[int]]] = deque()
        """When each was made, about whom, and which blocks; the oldest first."""

    def sent(self, replica: str, blocks: Sequence[int], now_s: float) -> None:
        """A prompt with these blocks was sent to the replica, which will hold them."""
        self._expire(now_s)
        self._guesses.append((now_s, replica, blocks))
        held = self._held.setdefault(replica, set())
        for block in blocks:
            holders = self._holders.setdefault(block, {})
            holders[replica] = max(now_s + _GUESS_S, holders.get(replica, 0.0))
        held.update(blocks)

    def told(self, replica: str, update: HeldUpdate) -> None:
        """Take over what a replica has told. Guesses that it does not speak of count until they are old."""
        held = self._held.setdefault(replica, set())
        if update.is_whole:
            self._drop(replica, [block for block in held if self._holders[block][replica] == _TOLD])
        self._drop(replica, update.dropped)
        for block in update.saved:
            self._holders.setdefault(block, {})[replica] = _TOLD
        held.update(update.saved)

    def forget(self, replica: str) -> None:
        """The replica is gone, or its memory is."""
        self._drop(replica, list(self._held.get(replica, ())))
        self._held.pop(replica, None)

    def num_held(self, replica: str, blocks: Sequence[int], now_s: float) -> int:
        """How many of the first blocks the replica holds. Who holds a block holds those before it."""
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            until_s = self._holders.get(blocks[middle - 1], {}).get(replica)
            low, high = (middle, high) if until_s is not None and until_s >= now_s else (low, middle - 1)
        return low

    def deepest(self, blocks: Sequence[int]) -> list[str]:
        """Who holds most of the first blocks, also by guesses that are old: the caller asks `num_held`."""
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._holders.get(blocks[middle - 1]) else (low, middle - 1)
        return list(self._holders[blocks[low - 1]]) if low else []

    def _expire(self, now_s: float) -> None:
        """Forget guesses that are old, unless newer ones or the replica itself have said the same."""
        while self._guesses and self._guesses[0][0] < now_s - _GUESS_S:
            _, replica, blocks = self._guesses.popleft()
            old = [b for b in blocks if self._holders.get(b, {}).get(replica, _TOLD) < now_s]
            self._drop(replica, old)

    def _drop(self, replica: str, blocks: Sequence[int]) -> None:
        held = self._held.get(replica, set())
        for block in blocks:
            holders = self._holders.get(block, {})
            if holders.pop(replica, None) is not None:
                held.discard(block)
                if not holders:
                    del self._holders[block]
