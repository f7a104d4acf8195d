"""How much one step may compute."""

from __future__ import annotations

from typing import Protocol

TILE = 16
"""Rows of a matrix kernel's tile: 16 tokens cost hardly more than 9 (EVIDENCE.md, 1)."""


class Budget(Protocol):
    def tokens(self, num_decoding: int) -> int:
        """Tokens of a step at most, in which `num_decoding` sequences decode."""
        ...


class TokenBudget:
    """A fixed number of tokens while someone waits for a next token, a larger one while nobody does.

    Prefill always gets one tile at least, so that many decoding sequences cannot lock a newcomer out.
    """

    def __init__(self, *, decoding: int, idle: int) -> None:
        self._decoding = decoding
        self._idle = idle

    def tokens(self, num_decoding: int) -> int:
        if num_decoding == 0:
            return self._idle
        return max(self._decoding, num_decoding + TILE)
