"""Quoted or generated drafts, with learned probabilities and costs. Constants are results of
`scripts/regress.py streams speculation.drafts.NAME`."""

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
"""Decay of observations, so that about 500 count. A quarter to four times as much, also of the names below,
changes at most 2 %."""
_FORGET_OWN = 0.96
"""Decay for one sequence, so that about 25 count: a text may quote in one place only."""
_FADE = 0.9998
"""Decay of the experience with unused drafts: after some 5,000 steps they are tried again."""
_FADE_OWN = 0.99
"""The same for one sequence, after some 50 steps. Its wrong drafts thus cost 1 %."""
_PRIOR_WEIGHT = 4.0
_LEAN = 4.0


class _Record:
    __slots__ = ("_forget", "right", "tried")

    def __init__(self, forget: float) -> None:
        self._forget = forget
        self.right = 0.0
        self.tried = 0.0

    def learn(self, *, was_right: bool) -> None:
        self.right = self._forget * self.right + was_right
        self.tried = self._forget * self.tried + 1.0

    def rate(self, assumed: float, weight: float) -> float:
        return (self.right + weight * assumed) / (self.tried + weight)


class GuessRates:
    """Share of correct guesses of each kind."""

    def __init__(self, assumed: Seq[float | None], common: GuessRates | None = None) -> None:
        """`assumed`: initial share for each kind, or None for that of the kind before. `common`: rates of all
        sequences."""
        self._assumed = assumed
        self._common = common
        self._records = [_Record(_FORGET_ALL if common is None else _FORGET_OWN) for _ in assumed]

    def rates(self) -> list[float]:
        if self._common is not None:
            pairs = zip(self._records, self._common.rates(), strict=True)
            return [record.rate(common, _LEAN) for record, common in pairs]
        found: list[float] = []
        for record, assumed in zip(self._records, self._assumed, strict=True):
            found.append(record.rate(found[-1] if assumed is None else assumed, _PRIOR_WEIGHT))
        return found

    @property
    def are_assumed(self) -> bool:
        return self._records[0].tried < _PRIOR_WEIGHT

    def learn(self, kind: int, *, was_right: bool) -> None:
        self._records[kind].learn(was_right=was_right)
        if self._common is not None:
            self._common.learn(kind, was_right=was_right)

    def fade(self, weight: float) -> None:
        """Forget slowly, so that an unused kind returns to its assumed rate."""
        for record in self._records:
            record.right *= weight
            record.tried *= weight

    def for_one_sequence(self) -> GuessRates:
        return GuessRates(self._assumed, self)


MIN_MATCH = 2
"""Tokens that must be equal. At 4 quotations are 4 % slower, at 1 3 % faster for more work in Python."""
MAX_MATCH = 32
_MAX_PLACES = 4
"""Places examined, from the latest backwards. 1 to 16 changes nothing."""
_ITEM = array("q").itemsize


class LookupGuess(NamedTuple):
    match: int
    """Equal tokens before it and before the quoted place."""
    was_right: bool


class PromptLookup:
    """Stays with a place while the tokens there match the new ones."""

    def __init__(self) -> None:
        self._tokens = array("q")
        self._place: int | None = None
        """Position of the predicted token, or None without a matching place."""
        self.match = 0
        """Equal tokens before that place."""

    def follow(self, tokens: Seq[int]) -> list[LookupGuess]:
        new = array("q", tokens[len(self._tokens) :])
        guesses = list(self._compare(new))
        self._tokens += new
        if self._place is None and new:
            self._search()
        return guesses

    def foreseen(self, limit: int) -> list[int]:
        """Return `limit` predicted tokens, repeated if the place is near the end, or none."""
        if self._place is None:
            return []
        found = self._tokens[self._place : self._place + limit].tolist()
        period = len(found)
        while len(found) < limit:
            found.append(found[-period])
        return found

    def _compare(self, new: array[int]) -> Iterator[LookupGuess]:
        for token in new:
            if self._place is None:
                return
            at = self._place
            foreseen = self._tokens[at] if at < len(self._tokens) else new[at - len(self._tokens)]
            yield LookupGuess(self.match, foreseen == token)
            if foreseen == token:
                self._place, self.match = at + 1, self.match + 1
            else:
                self._place, self.match = None, 0

    def _search(self) -> None:
        for end in self._places():
            match = self._match_before(end)
            if match > self.match:
                self._place, self.match = end, match
            if match >= MAX_MATCH:
                return

    def _places(self) -> Iterator[int]:
        if len(self._tokens) <= MIN_MATCH:
            return
        data, last = self._tokens.tobytes(), self._tokens[-MIN_MATCH:].tobytes()
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
        tokens, last = self._tokens, len(self._tokens)
        longest = min(MAX_MATCH, end)
        return next(
            (n for n in range(MIN_MATCH, longest) if tokens[end - 1 - n] != tokens[last - 1 - n]), longest
        )


_ASSUMED_OF_MODEL = 0.6
"""Probability of a correct token, until measured."""
_ASSUMED_OF_HEAD = 0.8
"""The same for a head, which is trained with its model (0.88 in large ones)."""
_MOST_OF_MODEL = 8
"""Longest draft: at a probability of 0.6 a ninth token would be reached once in a hundred times."""
_MOST_OF_HEAD = 4
"""The same for a head, whose later tokens are less often right (0.88, 0.82, 0.71, 0.64 for large models)."""
_READING = 0.3
"""Initial cost of a prefilled token relative to a drafted one: 16 rows against one row
(docs/measurements.md)."""
_MUCH_UNREAD = 4 * _MOST_OF_MODEL
"""Unread tokens from which the time of drafting teaches the cost of prefill instead."""
_PAID_IN_STEPS = 8
"""Steps over which the draft model's prefill must pay. Set by reasoning."""
_PRICE_RATE = 0.1
"""Weight of a new measurement, so that about ten count."""
_LEAST_SHARE = 0.05
"""Minimum relative time of a further sequence in a call. The cost model may predict that two rows take less
time than one."""
_FURTHEST = 2.0
"""Maximum factor between a measured time and the price, because one disturbed call must not end all
drafts."""
_ASSUMED = (0.2, 0.3, 0.5, 0.7, 0.85, 0.9)
"""Initial probability that a quotation continues, by equal tokens before it: 2, 3, 4, 8, 16, 32 and more.
Short matches are often chance."""
_KINDS = (0, 0, 0, 1, *(2,) * 4, *(3,) * 8, *(4,) * 16, 5)


@dataclass(frozen=True)
class SequenceDraft:
    tokens: tuple[int, ...] = ()
    """() if the draft model has to generate them."""
    chances: tuple[float, ...] = ()
    """Probability of each token being correct if those before it are."""
    first_ms: float = 0.0
    """Time before the first token."""
    token_ms: float = 0.0
    """Time of the draft model's call, beside its part of the step."""
    shared_ms: float | None = None
    """Time that this sequence adds to a call. None: `token_ms`."""
    num_unread: int = 0
    """Tokens to read first, beyond the usual few."""
    read_ms: float = 0.0

    def ms_at(self, num_others: int) -> float:
        return self.token_ms if not num_others or self.shared_ms is None else self.shared_ms


class Drafter(Protocol):
    def draft(self, sequence: Sequence, limit: int) -> SequenceDraft:
        """Return at most `limit` tokens, none of which ends the output. Called whenever the sequence
        decodes."""

    def forget(self, sequence: Sequence) -> None: ...


class _CallPrice(NamedTuple):
    token_ms: float
    shared_ms: float
    num_measured: int = 0

    def learned(self, num_calls: int, num_tokens: int, ms: float) -> _CallPrice:
        expected_ms = num_calls * self.token_ms + (num_tokens - num_calls) * self.shared_ms
        ratio = min(max(ms / max(expected_ms, 1e-9), 1 / _FURTHEST), _FURTHEST)
        factor = 1 + max(_PRICE_RATE, 1 / (self.num_measured + 2)) * (ratio - 1)
        return _CallPrice(factor * self.token_ms, factor * self.shared_ms, self.num_measured + 1)


class ModelDrafter:
    """Accuracy and time of the draft model, which drafts during the step."""

    def __init__(self, draft_cost: float, *, reads_along: bool = False, most: int | None = None) -> None:
        """`draft_cost`: relative time of a draft token until it is measured. `reads_along`: a head, which
        reads what the model computes."""
        self._draft_cost = draft_cost
        self.reads_along = reads_along
        self._most = min(most or _MOST_OF_MODEL, _MOST_OF_HEAD if reads_along else _MOST_OF_MODEL)
        self._prices: dict[int, _CallPrice] = {}
        """Prices by the bit length of the number of sequences, because those of many and of one differ."""
        self._read_ms: float | None = None
        self._assumed = _CallPrice(0.0, 0.0)
        assumed = _ASSUMED_OF_HEAD if reads_along else _ASSUMED_OF_MODEL
        self.experience = GuessRates((assumed, *[None] * (self._most - 1)))
        self._own: dict[Sequence, GuessRates] = {}
        self._num_read: dict[Sequence, int] = {}

    @property
    def is_untried_head(self) -> bool:
        return self.reads_along and self.experience.are_assumed

    def draft(
        self,
        sequence: Sequence,
        limit: int,
        model_ms: float,
        row_ms: float | None = None,
        num_sequences: int = 1,
    ) -> SequenceDraft:
        """`model_ms`: time of a step with one token. `row_ms`: of another token; `num_sequences`: those that
        may draft in the same calls."""
        if sequence not in self._own:
            self._own[sequence] = self.experience.for_one_sequence()
        self.experience.fade(_FADE)
        self._own[sequence].fade(_FADE_OWN)
        token_ms, shared_ms, _ = price = self._price_of(num_sequences.bit_length(), model_ms, row_ms)
        self._assumed = price
        read_ms = _READING * token_ms if self._read_ms is None else self._read_ms
        num_unread = max(0, self._unread(sequence) - _MOST_OF_MODEL)
        return SequenceDraft(
            chances=tuple(self._own[sequence].rates()[:limit]),
            first_ms=num_unread * read_ms / _PAID_IN_STEPS,
            token_ms=token_ms,
            shared_ms=shared_ms,
            num_unread=num_unread,
            read_ms=read_ms,
        )

    def learn(self, sequence: Sequence, drafted: Drafted) -> None:
        """An uncertain token counts as wrong."""
        own = self._own[sequence]
        for place in range(min(drafted.num_accepted, self._most)):
            own.learn(place, was_right=True)
        if drafted.num_accepted < min(drafted.num_thought, self._most):
            own.learn(drafted.num_accepted, was_right=False)

    def learn_price(self, outcomes: Mapping[Sequence, Drafted], drafting_ms: float) -> None:
        """Time after much reading teaches the cost of reading, else of draft tokens."""
        has_read = max(map(self._unread, outcomes)) > _MUCH_UNREAD
        num_read = sum(drafted.num_read - self._num_read.get(s, 0) for s, drafted in outcomes.items())
        self._num_read.update({sequence: drafted.num_read for sequence, drafted in outcomes.items()})
        num_tokens = sum(drafted.num_thought for drafted in outcomes.values())
        size = len(outcomes).bit_length()
        price = self._prices.get(size, self._assumed._replace(num_measured=0))
        if not has_read and num_tokens:
            # All sequences draft in the same calls.
            num_calls = max(drafted.num_thought for drafted in outcomes.values())
            self._prices[size] = price.learned(num_calls, num_tokens, drafting_ms)
        elif has_read and num_read - num_tokens > _MUCH_UNREAD:
            reading_ms = max(0.0, drafting_ms - num_tokens * price.token_ms)
            read_ms = reading_ms / (num_read - num_tokens)
            old_ms = read_ms if self._read_ms is None else self._read_ms
            self._read_ms = old_ms + _PRICE_RATE * (read_ms - old_ms)

    def _price_of(self, size: int, model_ms: float, row_ms: float | None) -> _CallPrice:
        if size in self._prices:
            return self._prices[size]
        fewer = max((other for other in self._prices if other < size), default=None)
        token_ms = self._draft_cost * model_ms if fewer is None else self._prices[fewer].token_ms
        if row_ms is None:
            return _CallPrice(token_ms, token_ms)
        share = row_ms / max(model_ms, 1e-9)
        return _CallPrice(token_ms, token_ms * min(max(_LEAST_SHARE, share), 1.0))

    def doubt(self, size: int) -> None:
        """Forget half of the experience and this price, because without drafts nothing is learned."""
        self.experience.fade(0.5)
        self._prices.pop(size, None)

    def forget(self, sequence: Sequence) -> None:
        self._own.pop(sequence, None)
        self._num_read.pop(sequence, None)

    def _unread(self, sequence: Sequence) -> int:
        if self.reads_along:
            return 0
        return len(sequence.tokens) - self._num_read.get(sequence, 0)


class LookupDrafter:
    """Drafts by quoting the tokens behind an earlier place. It learns from every new token, because
    predicting costs nothing."""

    def __init__(self, end_tokens: frozenset[int]) -> None:
        self._end_tokens = end_tokens
        self._experience = GuessRates(_ASSUMED)
        self._lookups: dict[Sequence, tuple[PromptLookup, GuessRates]] = {}

    def draft(self, sequence: Sequence, limit: int) -> SequenceDraft:
        if sequence not in self._lookups:
            self._lookups[sequence] = PromptLookup(), self._experience.for_one_sequence()
        lookup, experience = self._lookups[sequence]
        for guess in lookup.follow(sequence.tokens):
            experience.learn(_KINDS[min(guess.match, MAX_MATCH)], was_right=guess.was_right)
        foreseen = lookup.foreseen(limit)
        ends = (at for at, token in enumerate(foreseen) if token in self._end_tokens or token >= FIRST_ROW)
        tokens = tuple(foreseen[: next(ends, None)])  # rows of media cannot be drafted
        if not tokens:
            return SequenceDraft()
        rates = experience.rates()
        kinds = _KINDS[lookup.match :][: len(tokens)]
        chances = [rates[kind] for kind in kinds] + [rates[-1]] * (len(tokens) - len(kinds))
        return SequenceDraft(tokens, tuple(chances))

    def forget(self, sequence: Sequence) -> None:
        self._lookups.pop(sequence, None)
