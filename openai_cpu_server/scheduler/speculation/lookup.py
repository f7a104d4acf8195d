"""Prompt lookup: what followed an earlier place that reads like the end of the sequence may come again."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

MIN_MATCH = 2
"""Tokens that must be equal.

`scripts/sensitivity.py speculation.lookup.MIN_MATCH`: with 4 quotations are 4 % slower, with 1 they are 3 %
faster, for more work in Python.
"""
MAX_MATCH = 32
"""Beyond, it makes no difference how many more are equal."""
_MAX_PLACES = 4
"""Places that are looked at, from the latest backwards; a bound on the work.

`scripts/sensitivity.py speculation.lookup._MAX_PLACES`: 1 to 16 changes nothing.
"""
_ITEM = array("i").itemsize


class Guess(NamedTuple):
    """How a token that was foreseen compares with the one that came."""

    match: int
    """How many tokens before it were equal to those before the place that it was taken from."""
    was_right: bool


class Lookup:
    """Foresees one sequence. It stays with a place as long as the tokens there are those that come."""

    def __init__(self) -> None:
        self._known = array("i")
        """The tokens of the sequence that it has seen."""
        self._place: int | None = None
        """The position of the token that is foreseen to come next; None: there is no such place."""
        self._match = 0
        """How many tokens before that place are known to be equal to the last ones of the sequence."""

    @property
    def match(self) -> int:
        return self._match

    def follow(self, tokens: Seq[int]) -> list[Guess]:
        """Take in the new tokens of the sequence, and look for a place if there is none.

        `tokens` are all of the sequence. It returns how each new token that was foreseen turned out.
        """
        new = array("i", tokens[len(self._known) :])
        guesses = list(self._compare(new))
        self._known += new
        if self._place is None and new:
            self._search()
        return guesses

    def foreseen(self, limit: int) -> list[int]:
        """The `limit` tokens that may come next; none without a place.

        Where the tokens from the place to the end are fewer, they are repeated.
        """
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
        """Set the place to the one with the longest match; of equally long ones, to the latest."""
        for end in self._places():
            match = self._match_before(end)
            if match > self._match:
                self._place, self._match = end, match
            if match >= MAX_MATCH:
                return

    def _places(self) -> Iterator[int]:
        """The positions behind earlier occurrences of the last `MIN_MATCH` tokens, the latest first."""
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
        """How many tokens before position `end` are equal to the last ones; at most `MAX_MATCH`."""
        known, last = self._known, len(self._known)
        longest = min(MAX_MATCH, end)
        return next(
            (n for n in range(MIN_MATCH, longest) if known[end - 1 - n] != known[last - 1 - n]), longest
        )
