"""Learns how often guesses are right: from one sequence, and, while that says little, from all of them."""

from __future__ import annotations

from collections.abc import Sequence as Seq

_FORGET_ALL = 0.998
"""What a further observation leaves of those before: some 500 count, of all sequences together.

`scripts/sensitivity.py speculation.acceptance._FORGET_ALL` and the names below: no value from a quarter to
four times as much changes any workload by more than 2 %. They are orders of magnitude.
"""
_FORGET_OWN = 0.96
"""The same for one sequence, of which some 25 count: a text may quote in one place and not in the next."""
_FADE = 0.9998
"""What a draft that was not asked for leaves of the experience: after some 5,000 steps it is tried again."""
_PRIOR_WEIGHT = 8.0
"""Observations that the first assumption is worth."""
_LEAN = 4.0
"""Observations of its own that the experience of all is worth to a sequence."""


class _Record:
    __slots__ = ("_forget", "right", "tried")

    def __init__(self, forget: float) -> None:
        self._forget = forget
        self.right = 0.0
        self.tried = 0.0

    def learn(self, *, was_right: bool) -> None:
        self.right = self._forget * self.right + was_right
        self.tried = self._forget * self.tried + 1.0

    def fade(self) -> None:
        self.right *= _FADE
        self.tried *= _FADE

    def rate(self, assumed: float, weight: float) -> float:
        return (self.right + weight * assumed) / (self.tried + weight)


class Experience:
    """How often guesses of each kind were right in all sequences."""

    def __init__(self, assumed: Seq[float]) -> None:
        """`assumed`: for each kind, the share of right guesses (0 to 1) before anything is known."""
        self._assumed = assumed
        self._records = [_Record(_FORGET_ALL) for _ in assumed]

    def rate(self, kind: int) -> float:
        """Estimated probability that a guess of this kind is right."""
        return self._records[kind].rate(self._assumed[kind], _PRIOR_WEIGHT)

    def learn(self, kind: int, *, was_right: bool) -> None:
        self._records[kind].learn(was_right=was_right)

    def fade(self) -> None:
        """Forget a little, so that a kind that is no longer tried comes back to its assumed rate."""
        for record in self._records:
            record.fade()

    def for_one_sequence(self) -> OwnExperience:
        """Experience with one further sequence."""
        return OwnExperience(self, len(self._records))


class OwnExperience:
    """How often guesses of each kind were right in one sequence. The common experience learns with it."""

    def __init__(self, common: Experience, num_kinds: int) -> None:
        self._common = common
        self._records = [_Record(_FORGET_OWN) for _ in range(num_kinds)]

    def rate(self, kind: int) -> float:
        """Estimated probability that the sequence's next guess of this kind is right."""
        return self._records[kind].rate(self._common.rate(kind), _LEAN)

    def learn(self, kind: int, *, was_right: bool) -> None:
        self._records[kind].learn(was_right=was_right)
        self._common.learn(kind, was_right=was_right)
