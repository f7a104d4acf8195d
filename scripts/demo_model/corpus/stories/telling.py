"""Tells a plot in a wanted number of words."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_model.corpus.example import Split
from demo_model.corpus.phrases import choose
from demo_model.corpus.stories import adventures, everyday, friends, nature
from demo_model.corpus.stories.cast import Cast
from demo_model.corpus.stories.notation import Beat, Plot, read_plots

PLOTS = [plot for part in (everyday, friends, nature, adventures) for plot in read_plots(part.TEXT)]

_INTRO = Beat(
    "{[H] was [a_trait] [girl] {who lived in [town]|from [town]}.|In [town] there lived "
    "[a_trait] [girl] called [H]."
    "|There once was [a_trait] [girl] {named|called} [H].|[H] lived in [town], in a small [color] house.}",
    core=False,
)
_OUTRO = Beat(
    "{[H] never forgot that day.|[H] still {smiles|laughs} when [he] thinks of it.|That is how "
    "it was, and [H] likes to "
    "tell it.|[H] told the story many times.|And [H] slept very well that night.|It was a good "
    "day for [H] and [F].}",
    core=False,
)


@dataclass(frozen=True)
class Story:
    plot: str
    title: str
    topic: str
    text: str
    cast: Cast


def count_words(text: str) -> int:
    return len(text.split())


def tell(rng: random.Random, split: Split, least: int, most: int, title: bool = False) -> Story:
    """A story of `least` to `most` words, a title at its head counted. `least` 0: the core only."""
    while True:
        aim = rng.randint(least, most) if least else 0
        story = _try(rng, split, rng.choice(PLOTS), aim, title)
        if least <= count_words(story.text) <= most:
            return story


def _try(rng: random.Random, split: Split, plot: Plot, aim: int, title: bool) -> Story:
    cast = Cast(rng, split, plot.groups)
    beats = [Beat(choose(rng, beat.text), beat.core) for beat in _with_frame(rng, plot)]
    heading = cast.topic(choose(rng, plot.title))
    chosen = _fit(rng, beats, aim - (count_words(heading) if title else 0))
    text = " ".join(cast.fill(beat.text) for beat in chosen)
    topic = cast.topic(choose(rng, rng.choice(plot.topics)))
    return Story(plot.name, heading, topic, f"{heading}\n\n{text}" if title else text, cast)


def _with_frame(rng: random.Random, plot: Plot) -> list[Beat]:
    intro = [] if plot.is_fable or rng.random() < 0.4 else [_INTRO]
    return [*intro, *plot.beats, *([] if rng.random() < 0.6 else [_OUTRO])]


def _fit(rng: random.Random, beats: list[Beat], aim: int) -> list[Beat]:
    """The core, and as many others, in their order, as fit into `aim` words."""
    left = aim - sum(count_words(beat.text) for beat in beats if beat.core)
    others = [place for place, beat in enumerate(beats) if not beat.core]
    rng.shuffle(others)
    taken: set[int] = set()
    for place in others:
        length = count_words(beats[place].text)
        if length <= left:
            taken.add(place)
            left -= length
    return [beat for place, beat in enumerate(beats) if beat.core or place in taken]
