"""Prompt lookup: what came after an earlier place of the sequence that reads as its end does."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

MIN_MATCH = 2
"""Tokens that must be equal.

`scripts/sensitivity.py lookup.MIN_MATCH`: 4 loses 1 % of quotations, 1 gains nothing that counts.
"""
MAX_MATCH = 32
"""Beyond, it makes no difference how many more are equal."""
_MAX_PLACES = 4
"""Places that are looked at, from the latest backwards; a bound on the work.

`scripts/sensitivity.py lookup._MAX_PLACES`: 1 to 16 changes nothing.
"""
_ITEM = array("i").itemsize


class Guess(NamedTuple):
    """What was foreseen for a token that has come."""

    match: int
    """Tokens before it that were equal."""
    was_right: bool


class Lookup:
    """Of one sequence. Stays with a place for as long as that foretells what comes."""

    def __init__(self) -> None:
        self._known = array("i")
        """The sequence's tokens as far as they were looked at."""
        self._place: int | None = None
        """Of the token that is foreseen to come next."""
        self._match = 0
        """Tokens before that place which are equal to the sequence's last; what came after counts too."""

    @property
    def match(self) -> int:
        return self._match

    def follow(self, tokens: Seq[int]) -> list[Guess]:
        """Take in what the sequence has gained, and look for a place where there is none."""
        new = array("i", tokens[len(self._known) :])
        guesses = list(self._compare(new))
        self._known += new
        if self._place is None and new:
            self._search()
        return guesses

    def foreseen(self, limit: int) -> list[int]:
        """The tokens that may come, at most so many; none without a place. What repeats itself goes on."""
        if self._place is None:
            return []
        found = self._known[self._place : self._place + limit].tolist()
        period = len(found)
        while len(found) < limit:
            found.append(found[-period])
        return found

    def _compare(self, new: array[int]) -> Iterator[Guess]:
        for token in new:
            if self._place is None:
                return
            at = self._place
            foreseen = self._known[at] if at < len(self._known) else new[at - len(self._known)]
            yield Guess(self._match, foreseen == token)
            if foreseen == token:
                self._place, self._match = at + 1, self._match + 1
            else:
                self._place, self._match = None, 0

    def _search(self) -> None:
        """The place with the longest match; of equals the latest."""
        for end in self._places():
            match = self._match_before(end)
            if match > self._match:
                self._place, self._match = end, match
            if match >= MAX_MATCH:
                return

    def _places(self) -> Iterator[int]:
        """Where the last few tokens stand earlier: the positions behind them, the latest first."""
        if len(self._known) <= MIN_MATCH:
            return
        data, last = self._known.tobytes(), self._known[-MIN_MATCH:].tobytes()
        end = len(data) - 1
        for _ in range(_MAX_PLACES):
            at = data.rfind(last, 0, end)
            while at % _ITEM > 0:  # between two tokens; -1 is, too
                if at < 0:
                    return
                at = data.rfind(last, 0, at + len(last) - 1)
            yield at // _ITEM + MIN_MATCH
            end = at + len(last) - 1

    def _match_before(self, end: int) -> int:
        known, last = self._known, len(self._known)
        longest = min(MAX_MATCH, end)
        return next(
            (n for n in range(MIN_MATCH, longest) if known[end - 1 - n] != known[last - 1 - n]), longest
        )
