"""What reviews are about: products in groups, and what people like and dislike about each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_model.corpus.example import Split
from demo_model.corpus.phrasing import chance, vary
from demo_model.corpus.task_words import SMALL as NUMBERS
from demo_model.corpus.task_words import invented, spot, thing
from demo_model.corpus.words import belongs, plural


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
    "[|very |really |quite |so ][light|pretty|strong|handy|quiet|sturdy|practical"
    "|stylish|reliable|neat|useful]",
    "[|very |really |so ]easy to [use|carry|clean|store|hold|open|set up|repair|pack|fold]",
    "[good|great|perfect|made] for [children|traveling|my work|small rooms|{things}|my {thing}]",
    "[well made|good value|worth the money|nicely packed|strong and simple|cheap for what it does]",
    "[bigger|better|stronger|lighter|quieter] than [I thought|my old one|the {thing}|it looks]",
)
BAD_IS = (
    "[too|much too|far too|rather|really] [expensive|heavy|big|small|loud|weak|slow|ugly|fragile|thin]",
    "[|very |really |so ]hard to [use|carry|clean|store|hold|open|set up|repair|pack|fold]",
    "[useless|no good|not made|too weak] for [children|traveling|my work|small rooms|{things}|my {thing}]",
    "[badly made|not worth the money|poor value|always dusty|never clean|full of scratches]",
    "[smaller|heavier|louder|weaker|cheaper] than [I thought|my old one|the {thing}|it looks]",
)
GOOD_DOES = (
    "[arrived|came] [on time|{n} days early|well packed|in a nice box"
    "|with a free {thing}|with a spare {part}]",
    "works [very well|perfectly|without a problem|with my {thing}|in every room|all day long]",
    "[looks|still looks|feels] [great|new|strong|solid|good next to my {thing}|better than the photo]",
    "[fits|matches] [perfectly|my {thing}|in my {spot}|every {thing}|our {spot}]",
    "[saves|spares me] [time|money|a lot of work|{n} minutes a day]",
)
BAD_DOES = (
    "[arrived|came] [late|{n} days late|with a scratch|in a torn box"
    "|without the {part}|with a broken {part}]",
    "[broke|stopped working|fell apart|lost its color] [after {n} days|after {n} weeks"
    "|after {n} months|at once]",
    "[looks|smells|feels] [cheap|strange|old|dirty|like a wet {thing}|worse than the photo]",
    "[does not fit|scratches|ruined] [my {thing}|our {spot}|the {thing}]",
    "[costs|takes] [too much time|too much money|{n} hours a day|twice as much as a {thing}]",
)

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
    """Combinations of adjective and part are split, not the words; one part in five is made up."""
    while True:
        part, liked, disliked = rng.choice(group.parts)
        adjective = rng.choice((liked if good else disliked).split("/"))
        part = invented(rng, split, 2) if chance(rng, 0.2) else part
        if belongs(split, f"{adjective} {part}"):
            return Point(f"{adjective} {part}", "", part)


def frame_point(rng: random.Random, group: Group, split: Split, good: bool) -> Point:
    """What it is or does: from templates, or from what is said of such products only."""
    frame, general, special = rng.choice(
        (
            ("is", GOOD_IS if good else BAD_IS, group.good_is if good else group.bad_is),
            ("does", GOOD_DOES if good else BAD_DOES, group.good_does if good else group.bad_does),
        )
    )
    while True:
        wordings = special if split is Split.TRAIN and chance(rng, 0.25) else general
        noun = thing(rng, split)
        values = {
            "thing": noun,
            "things": plural(noun),
            "spot": spot(rng, split),
            "part": rng.choice(group.parts)[0],
        }
        phrase = vary(rng, rng.choice(wordings), n=NUMBERS[rng.randint(2, 12)], **values)
        if wordings is special or belongs(split, phrase):
            return Point(phrase, frame)


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
