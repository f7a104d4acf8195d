"""Sentences that praise, complain, or only state."""

from __future__ import annotations

import random

from demo_model.corpus import words
from demo_model.corpus.example import Split
from demo_model.corpus.phrasing import chance, one_of, sentence
from demo_model.corpus.task_words import SMALL, city, clock, company, first_name, invented_name
from demo_model.corpus.words.listed import listed

THINGS = listed(
    """
    film, book, hotel, meal, service, concert, phone, lamp, chair, trip, game, song, museum, teacher, waiter,
    room,
    beach, coffee, soup, train, show, shop, garden, cake, bed, guide, class, app, restaurant, play, coat,
    bicycle
    """
)
WORDS = {
    "positive": listed(
        """
        wonderful, great, excellent, lovely, amazing, perfect, fantastic, brilliant, charming, superb,
        delightful,
        very good, pleasant, outstanding, marvelous, splendid, really nice, a joy, a pleasure, first class
        """
    ),
    "negative": listed(
        """
        terrible, awful, horrible, boring, disgusting, bad, poor, dreadful, ugly, disappointing, useless,
        annoying,
        unpleasant, nasty, dirty, really bad, hopeless, miserable, a waste of money, a shame
        """
    ),
    "neutral": listed(
        """
        blue, square, next to the station, in the second row, on the list, ten years old, gray, on the left,
        two meters long, open on Monday, closed on Sunday, in the center, in a box, round, on page ten,
        part of a set, on the first floor, in the catalog, near the lake, the third one
        """
    ),
}
WHOLE = {
    "positive": (
        "[I love|I really like|I enjoyed|We loved|We enjoyed] the {thing}[ very much| a lot|]",
        "[I am|We are|{name} is] [so|very|really] [happy|pleased] with the {thing}",
        "[Thank you, {name}|Thanks, {name}], [you made my day|that was very kind|you are the best]",
        "[The best|The nicest] {thing} [I have ever had|in {city}|of the year]",
        "[I would buy it again|I will come again|I can only recommend it]",
        "[Great|Excellent|Good] work by {company}, [I am happy|we are happy|keep it up]",
        "{name} [laughed and smiled|was very happy] because of the {thing}",
    ),
    "negative": (
        "[I hate|I really dislike|I did not like|We hated] the {thing}",
        "[I am|We are|{name} is] [so|very|really] [angry about|unhappy with|disappointed by] the {thing}",
        "[I want my money back|Never again|I will not come back], the {thing} [was broken|did not work|came "
        "late]",
        "[The worst|The ugliest] {thing} [I have ever had|in {city}|of the year]",
        "{company} [ruined|broke|lost] my {thing} and [nobody helped|did not say sorry|did nothing]",
        "{name} [cried|was very sad|got angry] because of the {thing}",
        "[Do not buy|Stay away from] the {thing} of {company}",
    ),
    "neutral": (
        "[I bought|We saw|{name} ordered|I looked at] the {thing} [on {day}|at {time}|in {city}]",
        "the {thing} [costs|is priced at] {d} [dollars|euros]",
        "the {thing} [opens|starts|comes] at {time}",
        "the {thing} [is made by|comes from|belongs to] {company}",
        "there are {n} [rooms|pages|seats|parts] and {d} [people|pictures|lights]",
        "{name} [went to|lives in|works in|drove to] {city}[ on {day}|]",
        "the {thing} has [the number {d}|{n} parts]",
    ),
}
FRAMES = (
    "the {thing} [was|is] {word}", "[this|our|their] {thing} [was|is] {word}",
    "the {thing} [from|of] {company} [was|is] {word}", "[in {city}|on {day}] the {thing} was {word}",
    "[{name} says|I think|we think] [that |]the {thing} is {word}",
    "the {brand} {thing} [is|was] {word}",
)  # fmt: skip


def felt(rng: random.Random, split: Split, feeling: str) -> str:
    """One or two sentences with the same feeling; the second of a feeling may also only state."""
    first = one_feeling(rng, split, feeling)
    if chance(rng, 0.65):
        return first
    second = one_feeling(rng, split, "neutral" if chance(rng, 0.5) else feeling)
    return f"{first} {second}" if chance(rng, 0.7) else f"{second} {first}"


def one_feeling(rng: random.Random, split: Split, feeling: str) -> str:
    """A frame around a word of the feeling, or a sentence of its own. The things are split."""
    values = {
        "thing": words.pick(rng, split, THINGS), "name": first_name(rng, split), "city": city(rng, split),
        "company": company(rng, split), "brand": invented_name(rng, split), "day": rng.choice(words.DAYS),
        "time": clock(rng), "d": rng.randint(2, 99), "n": SMALL[rng.randint(2, 12)],
        "word": rng.choice(WORDS[feeling]),
    }  # fmt: skip
    told = one_of(rng, FRAMES if chance(rng, 0.5) else WHOLE[feeling], **values)
    text = sentence(told)
    return f"{text[:-1]}!" if feeling != "neutral" and chance(rng, 0.2) else text
