"""Limits the cost of one translation. Work is counted, so that a grammar passes or fails on every machine."""

from __future__ import annotations

from openai_cpu_server.structured.errors import InvalidGrammar

MOST_STEPS = 600_000
"""The most steps of all stages together; a step takes about a microsecond."""


class Work:
    def __init__(self, allowed: int = MOST_STEPS) -> None:
        self._allowed = allowed
        self.spent = 0

    def spend(self, steps: int) -> None:
        """Count steps. Raises InvalidGrammar once the sum exceeds the limit."""
        self.spent += steps
        if self.spent > self._allowed:
            message = f"too large, or too ambiguous: more than {self._allowed} steps to translate"
            raise InvalidGrammar(1, 1, message)


class TooMuch(Exception):
    """A share is used up, and there is a cheaper way to go on."""


class Share(Work):
    """A part of the work with a limit of its own."""

    def __init__(self, whole: Work, allowed: int) -> None:
        super().__init__(allowed)
        self._whole = whole

    def spend(self, steps: int) -> None:
        """Count steps of the share and of the whole. Raises TooMuch, InvalidGrammar."""
        self._whole.spend(steps)
        self.spent += steps
        if self.spent > self._allowed:
            raise TooMuch
