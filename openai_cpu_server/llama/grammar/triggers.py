"""Looks for the strings after which a grammar begins."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.errors import ConstraintFailed


class TriggerSearch:
    """Searches text that comes in pieces. A trigger may begin in one piece and end in another."""

    def __init__(self, triggers: Sequence[str]) -> None:
        """There must be at least one trigger. Raises `ConstraintFailed`."""
        if not all(triggers):
            raise ConstraintFailed("A trigger is empty.")
        self._triggers = [trigger.encode() for trigger in triggers]
        self._keep = max(map(len, self._triggers)) - 1
        self._tail = b""

    def rest_behind(self, piece: bytes) -> bytes | None:
        """The part of the next piece behind the first trigger that it completes;
        None if it completes none."""
        text = self._tail + piece
        ends = [at + len(t) for t in self._triggers if (at := text.find(t)) >= 0]
        return text[min(ends) :] if ends else None

    def push(self, piece: bytes) -> None:
        """Add a piece that completes no trigger."""
        text = self._tail + piece
        self._tail = text[max(0, len(text) - self._keep) :]
