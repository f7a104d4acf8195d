"""Drafts: tokens that a sequence may go on with, how likely they are (learned), and what it costs to find
them. They are quoted, or come from a draft model."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from openai_cpu_server.contract.media import FIRST_ROW
from openai_cpu_server.contract.step import Drafted
from openai_cpu_server.scheduler.sequence import Sequence

_FORGET_ALL = 0.998
"""What a further observation leaves of those before: some 500 count, of all sequences together.

`scripts/regress.py sensitivity speculation.drafts._FORGET_ALL` and the names below: no value from a quarter
to four times as much changes any workload by more than 2 %. They are orders of magnitude.
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


class GuessRates:
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

    def for_one_sequence(self) -> OwnGuessRates:
        """Experience with one further sequence."""
        return OwnGuessRates(self, len(self._records))


class OwnGuessRates:
    """How often guesses of each kind were right in one sequence. The common experience learns with it."""

    def __init__(self, common: GuessRates, num_kinds: int) -> None:
        self._common = common
        self._records = [_Record(_FORGET_OWN) for _ in range(num_kinds)]

    def rate(self, kind: int) -> float:
        """Estimated probability that the sequence's next guess of this kind is right."""
        return self._records[kind].rate(self._common.rate(kind), _LEAN)

    def learn(self, kind: int, *, was_right: bool) -> None:
        self._records[kind].learn(was_right=was_right)
        self._common.learn(kind, was_right=was_right)


MIN_MATCH = 2
"""Tokens that must be equal.

`scripts/regress.py sensitivity speculation.drafts.MIN_MATCH`: with 4 quotations are 4 % slower, with 1 they
are 3 % faster, for more work in Python.
"""
MAX_MATCH = 32
"""Beyond, it makes no difference how many more are equal."""
_MAX_PLACES = 4
"""Places that are looked at, from the latest backwards; a bound on the work.

`scripts/regress.py sensitivity speculation.drafts._MAX_PLACES`: 1 to 16 changes nothing.
"""
_ITEM = array("q").itemsize


class LookupGuess(NamedTuple):
    """How a token that was foreseen compares with the one that came."""

    match: int
    """How many tokens before it were equal to those before the place that it was taken from."""
    was_right: bool


class PromptLookup:
    """Foresees one sequence. It stays with a place as long as the tokens there are those that come."""

    def __init__(self) -> None:
        self._known = array("q")
        """The tokens of the sequence that it has seen."""
        self._place: int | None = None
        """The position of the token that is foreseen to come next; None: there is no such place."""
        self.match = 0
        """How many tokens before that place are known to be equal to the last ones of the sequence."""

    def follow(self, tokens: Seq[int]) -> list[LookupGuess]:
        """Take in the new tokens of the sequence, and look for a place if there is none.

        `tokens` are all of the sequence. It returns how each new token that was foreseen turned out.
        """
        new = array("q", tokens[len(self._known) :])
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

    def _compare(self, new: array[int]) -> Iterator[LookupGuess]:
        for token in new:
            if self._place is None:
                return
            at = self._place
            foreseen = self._known[at] if at < len(self._known) else new[at - len(self._known)]
            yield LookupGuess(self.match, foreseen == token)
            if foreseen == token:
                self._place, self.match = at + 1, self.match + 1
            else:
                self._place, self.match = None, 0

    def _search(self) -> None:
        """Set the place to the one with the longest match; of equally long ones, to the latest."""
        for end in self._places():
            match = self._match_before(end)
            if match > self.match:
                self._place, self.match = end, match
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


_ASSUMED_OF_MODEL = 0.6
"""The chance that a draft model's token is right, until it is measured, which takes a few drafts."""
_MOST_OF_MODEL = 8
"""Tokens of one draft of the draft model, which computes each alone. At a chance of 0.6 a ninth would be
reached once in a hundred times.
"""
_READING = 0.3
"""What a token of many that are read at once costs, against one that is thought of, until it is measured: the
price per token of 16 rows against one row (docs/measurements.md) for a small model.
"""
_MUCH_UNREAD = 4 * _MOST_OF_MODEL
"""From so many unread tokens on, the draft model's time teaches the price of reading, not of thinking."""
_PAID_IN_STEPS = 8
"""Steps over which reading a prompt must pay: it is read once, for many drafts. Set by reasoning."""
_PRICE_RATE = 0.1
"""Share of a new measurement in a price: some ten of them count."""
_ASSUMED = (0.2, 0.3, 0.5, 0.7, 0.85, 0.9)
"""The chance that a quotation goes on, until it is measured, by the tokens that were equal before it: 2, 3, 4
to 7, 8 to 15, 16 to 31, and more. Long matches are quotations, short ones often chance.
"""
_KINDS = (0, 0, 0, 1, *(2,) * 4, *(3,) * 8, *(4,) * 16, 5)
"""The index in `_ASSUMED` for each length of a match up to `MAX_MATCH`."""


@dataclass(frozen=True)
class SequenceDraft:
    """Tokens that may follow the last one of a sequence. How many of them are computed is chosen later."""

    tokens: tuple[int, ...] = ()
    """The tokens, where they are known; () where the backend's draft model has to generate them."""
    chances: tuple[float, ...] = ()
    """For each token, the probability that it is right if those before it are."""
    first_ms: float = 0.0
    """The time that it takes to begin, whatever the length."""
    token_ms: float = 0.0
    """The time that it takes to generate each token, besides its part of the step."""
    num_unread: int = 0
    """How many tokens of the sequence the draft model must read first, beyond the usual few."""
    read_ms: float = 0.0
    """The time that it takes to read each of those."""

    def drafting_ms(self, length: int) -> float:
        """The time that the draft model takes for a draft of `length` tokens."""
        return self.first_ms + length * self.token_ms


class Drafter(Protocol):
    """Finds drafts for sequences. It does not decide whether they are worth computing."""

    def draft(self, sequence: Sequence, limit: int) -> SequenceDraft:
        """A draft of at most `limit` tokens, none of which ends the output.

        It is called whenever the sequence decodes, also with a limit of 0.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of the sequence, which has finished."""
        ...


class ModelDrafter:
    """Foresees what the backend's draft model gives: how often it is right, and how long it takes.

    The tokens themselves are generated in the backend, during the step.
    """

    def __init__(self, draft_cost: float) -> None:
        """`draft_cost`: time of a draft token divided by that of the model's own, until it is measured."""
        self._draft_cost = draft_cost
        self._token_ms: float | None = None
        self._read_ms: float | None = None
        self._experience = GuessRates((_ASSUMED_OF_MODEL,))
        self._own: dict[Sequence, OwnGuessRates] = {}
        self._known: dict[Sequence, int] = {}
        """How many tokens of each sequence the draft model has read."""

    def draft(self, sequence: Sequence, limit: int, model_ms: float) -> SequenceDraft:
        """A draft of at most `limit` tokens. `model_ms` is the time of a step of the model with one token."""
        if sequence not in self._own:
            self._own[sequence] = self._experience.for_one_sequence()
        self._experience.fade()
        chance = self._own[sequence].rate(0)
        token_ms = self._draft_cost * model_ms if self._token_ms is None else self._token_ms
        read_ms = _READING * token_ms if self._read_ms is None else self._read_ms
        num_unread = max(0, self._unread(sequence) - _MOST_OF_MODEL)
        return SequenceDraft(
            chances=(chance,) * min(limit, _MOST_OF_MODEL),
            first_ms=num_unread * read_ms / _PAID_IN_STEPS,
            token_ms=token_ms,
            num_unread=num_unread,
            read_ms=read_ms,
        )

    def learn(self, sequence: Sequence, drafted: Drafted) -> None:
        """Learn from the outcome of a draft. A token that the draft model was not sure of counts as wrong."""
        own = self._own[sequence]
        for _ in range(drafted.num_accepted):
            own.learn(0, was_right=True)
        if drafted.num_accepted < drafted.num_thought:
            own.learn(0, was_right=False)

    def learn_price(self, outcomes: Mapping[Sequence, Drafted], drafting_ms: float) -> None:
        """Learn from `drafting_ms`, the time that the draft model took in a step with these outcomes.

        It is the price of the draft tokens; where much had to be read first, that of the tokens read.
        """
        has_read = max(map(self._unread, outcomes)) > _MUCH_UNREAD
        num_known = sum(drafted.num_known - self._known.get(s, 0) for s, drafted in outcomes.items())
        self._known.update({sequence: drafted.num_known for sequence, drafted in outcomes.items()})
        num_tokens = sum(drafted.num_thought for drafted in outcomes.values())
        if not has_read and num_tokens:
            self._token_ms = _nearer(self._token_ms, drafting_ms / num_tokens)
        elif has_read and num_known - num_tokens > _MUCH_UNREAD:
            reading_ms = max(0.0, drafting_ms - num_tokens * (self._token_ms or 0.0))
            self._read_ms = _nearer(self._read_ms, reading_ms / (num_known - num_tokens))

    def forget(self, sequence: Sequence) -> None:
        self._own.pop(sequence, None)
        self._known.pop(sequence, None)

    def _unread(self, sequence: Sequence) -> int:
        return len(sequence.tokens) - self._known.get(sequence, 0)


def _nearer(price_ms: float | None, ms: float) -> float:
    """The price, moved some way towards a further measurement; None: it is not known yet."""
    return ms if price_ms is None else price_ms + _PRICE_RATE * (ms - price_ms)


class LookupDrafter:
    """Drafts by quoting: it takes the tokens that followed an earlier place in the prompt or the output.

    It learns how often it is right from every token that comes, drafted or not, because to foresee a token
    costs nothing.
    """

    def __init__(self, end_tokens: frozenset[int]) -> None:
        self._end_tokens = end_tokens
        self._experience = GuessRates(_ASSUMED)
        self._known: dict[Sequence, tuple[PromptLookup, OwnGuessRates]] = {}

    def draft(self, sequence: Sequence, limit: int) -> SequenceDraft:
        if sequence not in self._known:
            self._known[sequence] = PromptLookup(), self._experience.for_one_sequence()
        lookup, experience = self._known[sequence]
        for guess in lookup.follow(sequence.tokens):
            experience.learn(_KINDS[min(guess.match, MAX_MATCH)], was_right=guess.was_right)
        tokens = tuple(self._before_end(lookup.foreseen(limit)))
        if not tokens:
            return SequenceDraft()
        rates = [experience.rate(kind) for kind in range(len(_ASSUMED))]
        kinds = _KINDS[lookup.match :][: len(tokens)]
        known = tuple(rates[kind] for kind in kinds)
        return SequenceDraft(tokens, known + (rates[-1],) * (len(tokens) - len(known)))

    def forget(self, sequence: Sequence) -> None:
        self._known.pop(sequence, None)

    def _before_end(self, tokens: list[int]) -> Iterator[int]:
        """The tokens before the first one that ends the output, or is a row of a picture."""
        for token in tokens:
            if token in self._end_tokens or token >= FIRST_ROW:
                return
            yield token
