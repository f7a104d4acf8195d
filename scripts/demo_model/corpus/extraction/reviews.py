"""Product reviews, and the JSON that says the same: rating, pros, cons and a summary."""

from __future__ import annotations

import random
from collections.abc import Sequence

from demo_model.corpus.example import Example, Split
from demo_model.corpus.extraction.asking import Record, ask
from demo_model.corpus.extraction.products import GROUPS, Point, points
from demo_model.corpus.phrasing import capital, chance, one_of, vary
from demo_model.corpus.task_words import SMALL, company, first_name, invented_name

RATED = (
    "{digit} out of 5[ stars|]", "{digit}/5",
    "[I give it|I would give it|My rating:|Rating:] {word} [stars|out of five]",
    "{word} out of five[ stars|]", "[Rating|Stars|My rating|Score]: {digit}", "{digit} stars",
    "[I give it|I would give it|It gets] {digit} [stars|out of 5 stars|out of 5]", "{word} stars from me",
)  # fmt: skip
IMPLIED = {
    1: ("the worst {product} I [ever bought|have ever had]", "[terrible|awful], I want my money back"),
    2: ("I am [rather|quite] disappointed", "not a good {product}"),
    3: ("it is [just|only] okay", "an average {product}, nothing [special|more]"),
    4: ("a [very good|really good] {product}, almost perfect", "I am [quite happy|pleased] with it"),
    5: ("the best {product} I [ever bought|have ever had]", "[perfect|simply perfect], I would buy it again"),
}
VERDICTS = {1: "Bad", 2: "Weak", 3: "Average", 4: "Good", 5: "Great"}
LIKED = {
    "": ("[I like|I love|I really like] the {a}", "the {a} made me happy", "[great:|best of all:] the {a}",
         "what I like [most|best] is the {a}"),
    "is": ("it is {a}", "[I like|I love] that it is {a}", "[happily,|for me] it is {a}"),
    "does": ("it {a}", "[I like|I love] that it {a}", "[good:|happily,] it {a}"),
}  # fmt: skip
HATED = {
    "": ("[I do not like|I hate|I dislike] the {a}", "the {a} [annoyed me|bothered me|let me down]",
         "[the bad side:|sadly:] the {a}",
         "what I do not like is the {a}"),
    "is": ("it is {a}", "[sadly,|I do not like that] it is {a}", "the problem is that it is {a}"),
    "does": ("it {a}", "[sadly,|I am angry that] it {a}", "the problem is that it {a}"),
}  # fmt: skip
LIKED_PAIR = ("[I like|I love] the {a} and the {b}", "the {a} and the {b} are [great|very good]")
HATED_PAIR = ("[I do not like|I hate] the {a} and the {b}", "the {a} and the {b} are [problems|annoying]")
OPENINGS = (
    "I bought [this|the] {product} [last week|a month ago|in {month}|online|for my {person}|for {name}]",
    "[My {person}|{name}] [gave me|got me] [this|the] {product}",
    "this is [a review of|about] the {full}",
    "I have had the {full} for [two weeks|a month|three days|a year]",
    "{full}", "[we|I] use the {full} [every day|a lot|at work|at home]", "I ordered the {full}",
)  # fmt: skip
PERSONS = ("sister", "brother", "mother", "father", "son", "daughter", "friend", "uncle", "aunt")
MONTHS = ("January", "March", "April", "May", "June", "July", "October", "December")
COUNTS = {1: ((0, 2), (0, 3), (0, 1)), 2: ((1, 2), (1, 3), (0, 2)), 3: ((1, 1), (2, 2), (1, 2)),
          4: ((2, 1), (3, 1), (2, 0), (1, 1)), 5: ((2, 0), (3, 0), (1, 0))}  # fmt: skip
"""Rating -> how many pros and cons."""
SCHEMAS: dict[str, dict[str, object]] = {
    "product": {"type": "string"},
    "rating": {"type": "integer", "minimum": 1, "maximum": 5},
    "pros": {"type": "array", "items": {"type": "string"}},
    "cons": {"type": "array", "items": {"type": "string"}},
    "summary": {"type": "string"},
}
SKETCH = {"product": "string", "rating": "1-5", "pros": "[string]", "cons": "[string]", "summary": "string"}


def make(rng: random.Random, split: Split) -> Example:
    rating = rng.randint(1, 5)
    group = rng.choice(GROUPS)
    num_pros, num_cons = rng.choice(COUNTS[rating])
    pros = points(rng, group, split, True, num_pros)
    cons = points(rng, group, split, False, num_cons, besides=pros)
    product = rng.choice(group.products)
    full = f"{brand(rng, split)} {product}"
    text, named = review(rng, split, rating, product, full, pros, cons)
    values: dict[str, object] = {"product": full if named else product} if chance(rng, 0.25) else {}
    values["rating"] = rating
    values["pros"], values["cons"] = [one.phrase for one in pros], [one.phrase for one in cons]
    values["summary"] = summary(rating, product, pros, cons)
    shown = {key: SCHEMAS[key] for key in values}
    return ask(rng, Record("extract_review", "review", text, values, shown, SKETCH))


def brand(rng: random.Random, split: Split) -> str:
    return invented_name(rng, split) if chance(rng, 0.7) else company(rng, split)


def summary(rating: int, product: str, pros: Sequence[Point], cons: Sequence[Point]) -> str:
    """The verdict that goes with the rating, then the first pro and the first con, copied."""
    both = [one.phrase for one in (*pros[:1], *cons[:1])]
    return f"{VERDICTS[rating]} {product}: {', but '.join(both)}."


def review(
    rng: random.Random,
    split: Split,
    rating: int,
    product: str,
    full: str,
    pros: list[Point],
    cons: list[Point],
) -> tuple[str, bool]:
    """The text, and whether it names the product in full."""
    opening = one_of(
        rng, OPENINGS, product=product, full=full, name=first_name(rng, split), person=rng.choice(PERSONS),
        month=rng.choice(MONTHS),
    )  # fmt: skip
    told = said(rng, pros, LIKED, LIKED_PAIR), said(rng, cons, HATED, HATED_PAIR)
    sides = [side for side in (told if rating >= 3 or chance(rng, 0.5) else told[::-1]) if side]
    middle = joined(rng, sides)
    rated = stars(rng, rating, product)
    parts = [opening, *middle, rated] if chance(rng, 0.75) else [rated, opening, *middle]
    return ". ".join(capital(one) for one in parts) + rng.choice((".", ".", ".", "!")), full in opening


def said(
    rng: random.Random, side: list[Point], frames: dict[str, tuple[str, ...]], pair: Sequence[str]
) -> list[str]:
    """One clause a point; two parts next to each other may share one."""
    if len(side) > 1 and not side[0].frame and not side[1].frame and chance(rng, 0.5):
        first = one_of(rng, pair, a=side[0].phrase, b=side[1].phrase)
        return [first, *said(rng, side[2:], frames, pair)]
    return [one_of(rng, frames[one.frame], a=one.phrase) for one in side]


def joined(rng: random.Random, sides: list[list[str]]) -> list[str]:
    """Liked and disliked as sentences of their own, or joined by a "but" where they meet."""
    if (
        len(sides) == 2
        and chance(rng, 0.4)
        and ":" not in sides[1][0]
        and not sides[1][0].startswith(("sadly", "happily"))
    ):
        bridge = f"{sides[0][-1]}, but {sides[1][0]}"
        return [*sides[0][:-1], bridge, *sides[1][1:]]
    return [clause for side in sides for clause in side]


def stars(rng: random.Random, rating: int, product: str) -> str:
    """The rating in digits or words; for a few only what it means."""
    implied = one_of(rng, IMPLIED[rating], product=product)
    if chance(rng, 0.2):
        return implied
    stated = vary(rng, rng.choice(RATED), digit=rating, word=SMALL[rating])
    stated = stated.replace("one stars", "one star").replace("1 stars", "1 star")
    return f"{implied}, {stated}" if chance(rng, 0.2) and stated[0] not in "IMRS" else stated
