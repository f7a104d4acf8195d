"""Drafts: tokens that a sequence may go on with, how likely they are, and what it costs to find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from openai_cpu_server.contract.step import Drafted
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation.acceptance import Experience, OwnExperience
from openai_cpu_server.scheduler.speculation.lookup import MAX_MATCH, Lookup

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
class Draft:
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

    def draft(self, sequence: Sequence, limit: int) -> Draft:
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
        self._experience = Experience((_ASSUMED_OF_MODEL,))
        self._own: dict[Sequence, OwnExperience] = {}
        self._known: dict[Sequence, int] = {}
        """How many tokens of each sequence the draft model has read."""

    def draft(self, sequence: Sequence, limit: int, model_ms: float) -> Draft:
        """A draft of at most `limit` tokens. `model_ms` is the time of a step of the model with one token."""
        if sequence not in self._own:
            self._own[sequence] = self._experience.for_one_sequence()
        self._experience.fade()
        chance = self._own[sequence].rate(0)
        token_ms = self._draft_cost * model_ms if self._token_ms is None else self._token_ms
        read_ms = _READING * token_ms if self._read_ms is None else self._read_ms
        num_unread = max(0, self._unread(sequence) - _MOST_OF_MODEL)
        return Draft(
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


class _Reader:
    """What the drafter keeps for one sequence."""

    def __init__(self, experience: OwnExperience) -> None:
        self.lookup = Lookup()
        self.experience = experience


class LookupDrafter:
    """Drafts by quoting: it takes the tokens that followed an earlier place in the prompt or the output.

    It learns how often it is right from every token that comes, drafted or not, because to foresee a token
    costs nothing.
    """

    def __init__(self, end_tokens: frozenset[int]) -> None:
        self._end_tokens = end_tokens
        self._experience = Experience(_ASSUMED)
        self._readers: dict[Sequence, _Reader] = {}

    def draft(self, sequence: Sequence, limit: int) -> Draft:
        reader = self._readers.get(sequence)
        if reader is None:
            reader = self._readers[sequence] = _Reader(self._experience.for_one_sequence())
        for guess in reader.lookup.follow(sequence.tokens):
            reader.experience.learn(_KINDS[min(guess.match, MAX_MATCH)], was_right=guess.was_right)
        tokens = tuple(self._before_end(reader.lookup.foreseen(limit)))
        if not tokens:
            return Draft()
        rates = [reader.experience.rate(kind) for kind in range(len(_ASSUMED))]
        kinds = _KINDS[reader.lookup.match :][: len(tokens)]
        known = tuple(rates[kind] for kind in kinds)
        return Draft(tokens, known + (rates[-1],) * (len(tokens) - len(known)))

    def forget(self, sequence: Sequence) -> None:
        self._readers.pop(sequence, None)

    def _before_end(self, tokens: list[int]) -> Iterator[int]:
        """The tokens before the first one that ends the output."""
        for token in tokens:
            if token in self._end_tokens:
                return
            yield token
