"""What reviews are about: products in groups, and what people like and dislike about each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_model.corpus.example import Split
from demo_model.corpus.phrasing import chance
from demo_model.corpus.words import pick


@dataclass(frozen=True)
class Group:
    """`good` and `bad` go before a part ("bright screen"); the others stand behind "it is" and "it"."""

    products: tuple[str, ...]
    parts: tuple[tuple[str, str, str], ...]
    """Part, good adjectives, bad adjectives; the adjectives stand with "/" between them."""
    good_is: tuple[str, ...]
    bad_is: tuple[str, ...]
    good_does: tuple[str, ...]
    bad_does: tuple[str, ...]


GOOD_IS = (
    "easy to use", "well made", "very light", "good value", "worth the money", "nicely packed", "fun to use",
    "easy to carry", "very pretty", "strong and simple", "quick to set up", "cheap for what it does",
)  # fmt: skip
BAD_IS = (
    "too expensive", "hard to use", "badly made", "too heavy", "not worth the money",
    "smaller than I thought",
    "very ugly", "hard to carry", "hard to clean", "always dusty", "slow to set up", "poor value",
)  # fmt: skip
GOOD_DOES = (
    "arrived on time", "works very well", "looks great", "came in a nice box", "feels strong", "does its job",
    "arrived a day early", "looks even better than the photo", "fits perfectly", "still looks new",
)  # fmt: skip
BAD_DOES = (
    "arrived late", "broke after two weeks", "smells strange", "came with a scratch", "feels cheap",
    "stopped working after a month", "came without instructions", "fell apart on the first day",
    "broke on the second day", "arrived in a torn box", "lost its color",
)  # fmt: skip

GROUPS = (
    Group(
        ("phone", "laptop", "tablet", "camera", "radio", "television", "speaker", "watch", "e-reader",
         "projector",
         "printer", "drone"),
        (("screen", "bright/sharp/big/clear", "dim/blurry/small/scratched"),
         ("battery", "strong/long-lasting/good/powerful", "weak/short-lived/bad/poor"),
         ("sound", "clear/rich/loud/warm", "thin/tinny/quiet/noisy"),
         ("buttons", "large/handy/smooth/solid", "tiny/loose/stiff/sticky"),
         ("cable", "long/sturdy/soft", "short/flimsy/stiff"),
         ("menu", "simple/clear/friendly", "confusing/slow/messy"),
         ("pictures", "sharp/lovely/colorful", "grainy/dark/pale")),
        ("fast to start", "very quiet", "simple to set up"), ("slow to start", "much too loud",
                                                              "hard to set up"),
        ("charges quickly", "connects at once", "starts in a second"),
        ("gets too hot", "loses the connection", "turns itself off"),
    ),
    Group(
        ("kettle", "toaster", "pan", "blender", "knife", "teapot", "coffee machine", "mixer", "pot",
         "oven dish",
         "cutting board", "mug"),
        (("handle", "comfortable/firm/cool", "wobbly/hot/slippery"),
         ("lid", "tight/neat/solid", "loose/crooked/thin"),
         ("design", "pretty/modern/clever/simple", "ugly/clumsy/boring/strange"),
         ("size", "perfect/handy/generous", "awkward/wrong/tiny"),
         ("surface", "smooth/shiny/clean", "rough/dull/greasy"),
         ("base", "heavy/stable/solid", "shaky/thin/uneven")),
        ("easy to clean", "safe to hold", "quick to heat up"), ("a pain to clean", "slow to heat up",
                                                                "noisy"),
        ("keeps food warm", "heats up quickly", "cleans up in no time"),
        ("leaks water", "burns everything", "rusts quickly"),
    ),
    Group(
        ("jacket", "coat", "shirt", "scarf", "hat", "sweater", "dress", "skirt", "pair of shoes",
         "pair of boots",
         "raincoat", "pair of gloves"),
        (("fabric", "soft/warm/thick/light", "scratchy/thin/stiff/cheap"),
         ("color", "lovely/bright/deep", "pale/ugly/faded"),
         ("fit", "perfect/comfortable/great", "bad/tight/odd"),
         ("seams", "neat/strong/clean", "weak/crooked/open"),
         ("pockets", "deep/big/useful", "tiny/shallow/torn"),
         ("zipper", "smooth/solid/sturdy", "broken/stuck/cheap")),
        ("warm and cozy", "comfortable all day", "soft on the skin"),
        ("not warm enough", "too tight", "much too long"),
        ("keeps me dry", "keeps its shape", "goes with everything"),
        ("shrank in the wash", "lets the rain in", "tears easily"),
    ),
    Group(
        ("chair", "table", "lamp", "sofa", "desk", "bed", "shelf", "pillow", "blanket", "mirror", "carpet",
         "bookcase"),
        (("legs", "sturdy/strong/elegant", "wobbly/uneven/weak"),
         ("wood", "beautiful/solid/dark", "cheap/rough/cracked"),
         ("finish", "smooth/fine/flawless", "patchy/sticky/rough"),
         ("style", "modern/classic/elegant", "boring/dated/dull"),
         ("instructions", "clear/short/helpful", "confusing/missing/useless"),
         ("screws", "strong/matching/spare", "loose/missing/wrong")),
        ("easy to put together", "very comfortable", "stable"),
        ("hard to put together", "not comfortable", "shaky"),
        ("fits in any room", "holds a lot of weight", "makes the room brighter"),
        ("takes up too much space", "makes a strange noise", "bends under weight"),
    ),
    Group(
        ("tent", "backpack", "suitcase", "bicycle", "umbrella", "ball", "kite", "puzzle", "board game",
         "toy train",
         "bottle", "sleeping bag"),
        (("straps", "soft/strong/wide", "thin/weak/rough"),
         ("wheels", "smooth/quiet/strong", "noisy/stiff/broken"),
         ("material", "tough/light/good", "cheap/thin/poor"),
         ("colors", "cheerful/bright/beautiful", "dull/faded/ugly"),
         ("rules", "simple/clear/clever", "complicated/unclear/silly"),
         ("pieces", "sturdy/big/pretty", "fragile/tiny/missing"),
         ("price", "low/fair/good", "high/silly/unfair")),
        ("fun for everyone", "easy to pack", "great for children"),
        ("boring after an hour", "hard to pack", "not safe for children"),
        ("holds a lot", "survives the rain", "lasts for years"),
        ("breaks easily", "holds very little", "falls over all the time"),
    ),
)  # fmt: skip


TRIES = 40


@dataclass(frozen=True)
class Point:
    """A phrase as it stands in the review, and the frame around it: "" (a part), "is" or "does"."""

    phrase: str
    frame: str
    part: str = ""

    @property
    def about(self) -> str:
        return self.part or self.phrase


def part_point(rng: random.Random, group: Group, split: Split, good: bool) -> Point:
    """Combinations of part and adjective are split, not the words."""
    combos = []
    for part, liked, disliked in group.parts:
        combos += [f"{adjective} {part}" for adjective in (liked if good else disliked).split("/")]
    phrase = pick(rng, split, combos)
    return Point(phrase, "", phrase.split(" ")[-1])


def frame_point(rng: random.Random, group: Group, split: Split, good: bool) -> Point:
    if chance(rng, 0.5):
        return Point(pick(rng, split, (GOOD_IS + group.good_is) if good else (BAD_IS + group.bad_is)), "is")
    return Point(
        pick(rng, split, (GOOD_DOES + group.good_does) if good else (BAD_DOES + group.bad_does)), "does"
    )


def points(
    rng: random.Random, group: Group, split: Split, good: bool, count: int, besides: Sequence[Point] = ()
) -> list[Point]:
    """Different phrases; no part twice, and none of `besides`. Fewer where the held-out ones run out."""
    found: list[Point] = []
    for _ in range(TRIES):
        if len(found) == count:
            break
        one = (part_point if chance(rng, 0.65) else frame_point)(rng, group, split, good)
        if not any(one.about == other.about for other in (*found, *besides)):
            found.append(one)
    return found
