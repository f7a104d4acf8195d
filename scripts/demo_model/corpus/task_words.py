"""The values that reading tasks are about: from the word lists, or invented from syllables or digits."""

from __future__ import annotations

import random
from collections.abc import Callable

from demo_model.corpus import words
from demo_model.corpus.example import Split
from demo_model.corpus.phrasing import capital, chance
from demo_model.corpus.words.listed import listed

STREETS = (*words.TREES, *words.FLOWERS, *listed(
    """
    mill, station, church, garden, river, park, bridge, market, school, king, queen, castle, forest, lake,
    meadow, harbor, hill, valley
    """
))  # fmt: skip
COMPANY_ENDS = listed("Books, Foods, Tools, Motors, Travel, Systems, Paper, Design, Lights, Toys, Bank")
WAYS = ("Street", "Road", "Lane")
SMALL = words.NUMBERS
LISTED = frozenset(word.lower() for word in (*words.NAMES, *words.SURNAMES, *words.CITIES))

ONSETS = listed("b, br, c, d, dr, f, fl, g, gr, h, k, kl, l, m, n, p, pl, qu, r, s, st, t, tr, v, w, y, z")
VOWELS = ["a", "a", "e", "e", "i", "i", "o", "o", "u", "ai", "ea", "ou"]
CODAS = ["", "", "", "n", "r", "l", "s", "m", "x", "nd", "k", "rt"]


def syllable(rng: random.Random) -> str:
    return rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)


def invented(rng: random.Random, split: Split, syllables: int = 0) -> str:
    """A made-up word in small letters, of two or three syllables."""
    while True:
        word = "".join(syllable(rng) for _ in range(syllables or rng.choice((2, 2, 3))))
        if word not in LISTED and words.belongs(split, word):
            return word


def invented_name(rng: random.Random, split: Split) -> str:
    return capital(invented(rng, split, 2))


def name_or_invented(rng: random.Random, split: Split, names: tuple[str, ...]) -> str:
    return invented_name(rng, split) if chance(rng, 0.6) else capital(words.pick(rng, split, names))


def known_or_new(rng: random.Random, split: Split, draw: Callable[[random.Random, Split], str]) -> str:
    """A noun of the lists, a made-up one, or both: values must be read, not guessed."""
    way = rng.random()
    if way < 0.5:
        return draw(rng, split)
    made = invented(rng, split, 2)
    return made if way < 0.75 else f"{made} {draw(rng, split)}"


def thing(rng: random.Random, split: Split) -> str:
    return known_or_new(rng, split, words.thing)


def food(rng: random.Random, split: Split) -> str:
    return known_or_new(rng, split, words.food)


def animal(rng: random.Random, split: Split) -> str:
    return known_or_new(rng, split, words.animal)


def spot(rng: random.Random, split: Split) -> str:
    return known_or_new(rng, split, words.spot)


def job(rng: random.Random, split: Split) -> str:
    return known_or_new(rng, split, words.job)


def person(rng: random.Random, split: Split) -> words.Person:
    """A first name with its pronouns: from the lists, or with the ending of a name, or any syllables."""
    someone = words.person(rng, split)
    if chance(rng, 0.6):
        return someone
    return words.Person(invented_name(rng, split), someone.he, someone.him, someone.his)


def first_name(rng: random.Random, split: Split) -> str:
    return person(rng, split).name


def full_name(rng: random.Random, split: Split) -> str:
    return f"{first_name(rng, split)} {name_or_invented(rng, split, words.SURNAMES)}"


def city(rng: random.Random, split: Split) -> str:
    return invented_name(rng, split) if chance(rng, 0.4) else words.city(rng, split)


def company(rng: random.Random, split: Split) -> str:
    return f"{name_or_invented(rng, split, words.SURNAMES)} {rng.choice(COMPANY_ENDS)}"


def street(rng: random.Random, split: Split) -> str:
    return f"{rng.randint(1, 199)} {name_or_invented(rng, split, STREETS)} {rng.choice(WAYS)}"


def clock(rng: random.Random) -> str:
    """A time of day as people write it, while people are awake."""
    minute = f"{rng.randint(0, 11) * 5:02}" if chance(rng, 0.5) else rng.choice(("15", "30", "45"))
    morning, later = rng.randint(6, 11), rng.randint(1, 9)
    forms = (
        f"{morning} am",
        f"{later} pm",
        f"{morning}:{minute} am",
        f"{later}:{minute} pm",
        f"{later + 12}:{minute}",
    )
    return rng.choice(forms)


def date(rng: random.Random) -> str:
    """A day in the calendar, in one of the usual forms."""
    day, month = rng.randint(1, 28), rng.choice(words.MONTHS)
    iso = f"{rng.randint(2021, 2031)}-{words.MONTHS.index(month) + 1:02}-{day:02}"
    return rng.choice((f"{day} {month}", f"{month} {day}", f"{rng.choice(words.DAYS)}, {month} {day}", iso))


def phone(rng: random.Random) -> str:
    """A number that rings nowhere: digits in one of the usual groupings."""
    digits = [str(rng.randint(100, 999)), str(rng.randint(1000, 9999)), str(rng.randint(10, 99))]
    forms = ("555-{1}", "{0}-555-{1}", "+{2} {0} {1}", "({0}) {1}", "0{2} {1}", "{0} {1}")
    return rng.choice(forms).format(*digits)
