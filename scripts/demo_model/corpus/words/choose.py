"""Draws from word lists, so that held-out examples show words that training never does.

Every tenth word of a list is held out. Invented words belong to one side by their checksum.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo_model.corpus.example import Split
from demo_model.corpus.words import people, places, things
from demo_model.corpus.words.listed import listed

ONE_IN = 10
INVENTED = 0.55
"""The share of names that are made of syllables: who knows most names by heart never learns to copy one."""


def pick(rng: random.Random, split: Split, words: Sequence[str]) -> str:
    """One word of the split's part of a list of at least ten."""
    held_out = len(words) // ONE_IN
    if split is Split.HELD_OUT:
        return words[rng.randrange(held_out) * ONE_IN + ONE_IN - 1]
    group, place = divmod(rng.randrange(len(words) - held_out), ONE_IN - 1)
    if group < held_out:
        return words[group * ONE_IN + place]
    return words[held_out * ONE_IN + (group - held_out) * (ONE_IN - 1) + place]


def part(words: Sequence[str], split: Split) -> list[str]:
    """All words of the split's part, in order."""
    return [w for i, w in enumerate(words) if (i % ONE_IN == ONE_IN - 1) == (split is Split.HELD_OUT)]


def belongs(split: Split, *values: object) -> bool:
    """Whether a combination of values is the split's; one in ten is held out."""
    checksum = zlib.crc32("\0".join(map(str, values)).encode())
    return (checksum % ONE_IN == 0) == (split is Split.HELD_OUT)


def several(draw: Callable[[], str], count: int, besides: Sequence[str] = ()) -> list[str]:
    """`count` different words, none of `besides`. The draw must have enough of them."""
    found: list[str] = []
    while len(found) < count:
        word = draw()
        if word not in found and word not in besides:
            found.append(word)
    return found


def _syllables(rng: random.Random, count: int) -> str:
    middle = "".join(rng.choice(_STARTS) + rng.choice(_VOWELS) for _ in range(count - 1))
    return middle + rng.choice(_STARTS[:18])


def _invent(rng: random.Random, split: Split, endings: Sequence[str]) -> str:
    while True:
        word = (_syllables(rng, rng.choice((2, 2, 3))) + rng.choice(endings)).capitalize()
        rude = any(part in word.lower() for part in _UNWANTED)
        if not rude and word not in _LISTED and belongs(split, word):
            return word


@dataclass(frozen=True)
class Person:
    name: str
    he: str
    """he or she"""
    him: str
    his: str

    @property
    def himself(self) -> str:
        return f"{self.him}self"


def boy(rng: random.Random, split: Split, invented: float = INVENTED) -> Person:
    """`invented`: the share of names made of syllables."""
    made = rng.random() < invented
    name = _invent(rng, split, _BOY_ENDS) if made else pick(rng, split, people.BOYS)
    return Person(name, "he", "him", "his")


def girl(rng: random.Random, split: Split, invented: float = INVENTED) -> Person:
    made = rng.random() < invented
    name = _invent(rng, split, _GIRL_ENDS) if made else pick(rng, split, people.GIRLS)
    return Person(name, "she", "her", "her")


def person(rng: random.Random, split: Split, invented: float = INVENTED) -> Person:
    return boy(rng, split, invented) if rng.random() < 0.5 else girl(rng, split, invented)


def name(rng: random.Random, split: Split) -> str:
    """A first name, from the lists or made of syllables."""
    return person(rng, split).name


def names(rng: random.Random, split: Split, count: int) -> list[str]:
    """Different first names."""
    return several(lambda: name(rng, split), count)


def invented_name(rng: random.Random, split: Split) -> str:
    return person(rng, split, invented=1.0).name


def surname(rng: random.Random, split: Split) -> str:
    if rng.random() < INVENTED:
        return _invent(rng, split, _SURNAME_ENDS)
    return pick(rng, split, people.SURNAMES)


def full_name(rng: random.Random, split: Split) -> str:
    return f"{name(rng, split)} {surname(rng, split)}"


def city(rng: random.Random, split: Split) -> str:
    """A city, or an invented town."""
    return town(rng, split) if rng.random() < 0.45 else pick(rng, split, places.CITIES)


def town(rng: random.Random, split: Split) -> str:
    """An invented town, such as Ashford or Tarimbury."""
    while True:
        start = rng.choice(_TOWN_STARTS) if rng.random() < 0.5 else _syllables(rng, 2).capitalize()
        word = start + rng.choice(_TOWN_ENDS)
        if word not in _LISTED and belongs(split, word):
            return word


def country(rng: random.Random, split: Split) -> str:
    return pick(rng, split, places.COUNTRIES)


def spot(rng: random.Random, split: Split) -> str:
    """A kind of place, to go behind "the": park, bus stop."""
    return pick(rng, split, places.SPOTS)


def thing(rng: random.Random, split: Split) -> str:
    """A countable noun in the singular."""
    return pick(rng, split, things.THINGS)


def animal(rng: random.Random, split: Split) -> str:
    return pick(rng, split, things.ANIMALS)


def food(rng: random.Random, split: Split) -> str:
    return pick(rng, split, things.FOODS)


def job(rng: random.Random, split: Split) -> str:
    return pick(rng, split, things.JOBS)


def invented_word(rng: random.Random, split: Split) -> str:
    """A short word of no meaning in lower case, for copying."""
    return _invent(rng, split, ("", "e", "o", "a", "in", "et")).lower()


def of_one_sort(rng: random.Random, split: Split, least: int, most: int) -> list[str]:
    """`least` to `most` (at most nine) different names, things, animals, food, cities or invented words."""
    count = rng.randint(least, most)
    small = (animal, food) if count <= _FEWEST else ()
    draw = rng.choice((name, thing, city, invented_word, *small))
    return several(lambda: draw(rng, split), count)


_FEWEST = 4
"""The held-out part of every sort has more words than that."""
_STARTS = listed("b, c, d, f, g, h, j, k, l, m, n, p, r, s, t, v, w, z, br, dr, gr, kl, tr, st, sh, th")
_VOWELS = listed("a, a, e, e, i, i, o, o, u, ai, ee")
_BOY_ENDS = ("o", "an", "ek", "in", "us", "ir", "on", "ar")
_GIRL_ENDS = ("a", "ia", "ina", "elle", "eth", "ara", "y", "une")
_SURNAME_ENDS = ("er", "son", "man", "ski", "ini", "eau", "stein", "ova")
_UNWANTED = listed(
    """
    shit, fuc, fuk, cun, dic, dik, tit, nig, fag, rape, cum, coc, kok, naz, sex, pis, poo, kil
    """
)
_TOWN_STARTS = listed(
    """
    Ash, Oak, Elm, Green, White, Black, Red, Stone, River, Lake, Hill, Wood, Mill, King, North,
    South, East, West, New, Old, Spring, Summer, Winter, Rose, Fox, Wolf, Deer, Swan, Bright,
    Silver, Gold, Long, Broad, High, Low, Clear, Sand, Salt, Moss, Fern
    """
)
_TOWN_ENDS = listed(
    """
    ford, ton, bury, field, wood, bridge, mouth, port, dale, stead, ham, wick, ville, haven, mere,
    gate
    """
)
_LISTED = frozenset(people.GIRLS + people.BOYS + people.SURNAMES + places.CITIES)
