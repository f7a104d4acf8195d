"""Single clauses, such as "Anna paints the red chair in the garden.", in all their forms."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from demo_model.corpus import words
from demo_model.corpus.example import Split
from demo_model.corpus.words.grammar import past as past_of
from demo_model.corpus.words.listed import listed

_VERBS = listed(
    """
    find, lose, paint, carry, buy, sell, see, need, want, like, draw, clean, hide, bring, take, keep,
    hold, choose, forget, wash, use, lend, show, move, open, watch, make, get, throw, drop, send, leave,
    give away, put away, look at, wait for, ask for, talk about, think of, pay for, look for, love,
    push, pull, touch, repair, borrow, break, count, fetch
    """
)
_ENDINGS = (
    "",
    "",
    "",
    "every day",
    "in the morning",
    "in the evening",
    "after school",
    "on {day}",
    "with {name}",
    "in the {spot}",
    "near the {spot}",
    "for {name}",
)


@dataclass(frozen=True)
class Clause:
    subject: str
    verb: str
    """Its base form, perhaps with a particle: look for."""
    adjective: str
    noun: str
    ending: str

    @property
    def _rest(self) -> str:
        adjective = f"{self.adjective} " if self.adjective else ""
        return f"the {adjective}{self.noun}{' ' + self.ending if self.ending else ''}"

    def _verb(self, form: str) -> str:
        _, *particle = self.verb.split(" ")
        return " ".join([form, *particle])

    @property
    def _base(self) -> str:
        return self.verb.split(" ")[0]

    def present(self) -> str:
        return f"{self.subject} {self._verb(words.third(self._base))} {self._rest}."

    def past(self) -> str:
        return f"{self.subject} {self._verb(past_of(self._base))} {self._rest}."

    def future(self) -> str:
        return f"{self.subject} will {self.verb} {self._rest}."

    def negative(self) -> str:
        return f"{self.subject} does not {self.verb} {self._rest}."

    def past_negative(self) -> str:
        return f"{self.subject} did not {self.verb} {self._rest}."

    def question(self) -> str:
        return f"Does {self.subject} {self.verb} {self._rest}?"

    def past_question(self) -> str:
        return f"Did {self.subject} {self.verb} {self._rest}?"

    def with_subject(self, subject: str) -> Clause:
        return replace(self, subject=subject)

    def with_noun(self, noun: str) -> Clause:
        return replace(self, noun=noun)


def clause(rng: random.Random, split: Split) -> Clause:
    """A person, a verb, a thing, and perhaps where, when or for whom."""
    subject, other = words.names(rng, split, 2)
    noun = words.thing(rng, split)
    spot = words.several(lambda: words.spot(rng, split), 1, [noun])[0]
    ending = rng.choice(_ENDINGS).format(day=rng.choice(words.DAYS), name=other, spot=spot)
    adjective = rng.choice(("", "", *words.COLORS[:8], "old", "new", "small", "big", "shiny"))
    return Clause(subject, rng.choice(_VERBS), adjective, noun, ending)
