"""How much the translation of one grammar may cost. Counted: the same grammar passes or fails everywhere."""

from __future__ import annotations

from openai_cpu_server.structured.errors import InvalidGrammar

MOST_STEPS = 42_000
"""Of all stages together; a step takes about a microsecond."""


class Work:
    def __init__(self, allowed: int | None = None) -> None:
        self._allowed = MOST_STEPS if allowed is None else allowed
        self.spent = 0

    def spend(self, steps: int) -> None:
        """Raises InvalidGrammar once the sum passes the limit."""
        self.spent += steps
        if self.spent > self._allowed:
            message = f"too large, or too ambiguous: more than {self._allowed} steps to translate"
            raise InvalidGrammar(1, 1, message)


class TooMuch(Exception):
    """A share is used up: there is a cheaper way."""


class Share(Work):
    """Part of the work, with a limit of its own."""

    def __init__(self, whole: Work, allowed: int) -> None:
        super().__init__(allowed)
        self._whole = whole

    def spend(self, steps: int) -> None:
        """Raises TooMuch, InvalidGrammar."""
        self._whole.spend(steps)
        self.spent += steps
        if self.spent > self._allowed:
            raise TooMuch
