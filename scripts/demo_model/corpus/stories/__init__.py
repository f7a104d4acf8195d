"""Short simple stories, on request and as plain text."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_model.corpus.example import Example, Maker, Role, Split, Turn
from demo_model.corpus.phrases import choose
from demo_model.corpus.stories.telling import Story, tell


@dataclass(frozen=True)
class Length:
    least: int
    """0: four sentences, without anything more."""
    most: int
    wish: str
    """How a request says it; empty where it does not."""


LENGTHS = (
    Length(
        0, 65, "{Keep it short.|Make it short.|Three or four sentences are enough.|Use only four sentences.}"
    ),
    Length(50, 70, "{Use about 60 words.|It should have about 60 words.|About 60 words, please.}"),
    Length(86, 114, "{Use about 100 words.|It should have about 100 words.|Write around 100 words.}"),
    Length(130, 170, "{Use about 150 words.|It should have about 150 words.|Make it long, about 150 words.}"),
    Length(60, 120, ""),
)
_WEIGHTS = (25, 20, 25, 10, 20)

_ASK = (
    "{Write|Please write|Tell me|Please tell me|Can you write|Could you tell me|I would like to "
    "read|I want|Give me"
    "|Make up}"
)
_WHAT = "{a|a|a simple|a little|a nice|a children's}"
_SYSTEM = (
    "{You are a storyteller.|You write simple stories.|You tell short stories for children.|You "
    "are a helpful assistant."
    "|You are a kind assistant who tells stories.|Answer in simple English.}"
)


def on_request(rng: random.Random, split: Split) -> Example:
    """A story with a given topic, names and length, each of them sometimes left open."""
    length = rng.choices(LENGTHS, _WEIGHTS)[0]
    titled = rng.random() < 0.12
    story = tell(rng, split, length.least, length.most, titled)
    names, naming = _naming(rng, story)
    topic = story.topic if not names or rng.random() < 0.85 else ""
    request = _request(rng, topic, naming, choose(rng, length.wish), titled)
    system = (Turn(Role.SYSTEM, choose(rng, _SYSTEM)),) if rng.random() < 0.2 else ()
    return Example(
        kind="stories",
        turns=(*system, Turn(Role.USER, request), Turn(Role.ASSISTANT, story.text)),
        expected={"names": names, "words": [length.least or 25, length.most], "topic": topic},
    )


def _naming(rng: random.Random, story: Story) -> tuple[list[str], str]:
    """The names that the request gives, and its sentence with them."""
    hero, friend = story.cast.hero, story.cast.friend
    chance = rng.random()
    if chance < 0.15:
        return [], ""
    if chance < 0.35 or friend.name not in story.text:
        text = (
            f"{{The {{hero|main character}} is {{called|named}} {hero.name}.|The hero's name is "
            f"{hero.name}.}}"
        )
        return [hero.name], choose(rng, text)
    both = f"{hero.name} and {friend.name}"
    text = (
        f"{{The names are {both}.|Use the names {both}.|It is about {both}.|The "
        f"{{friends|heroes}} are called {both}."
        f"|The hero is {hero.name}, and {friend.name} is in it, too.|Please call them {both}.}}"
    )
    return [hero.name, friend.name], choose(rng, text)


def _request(rng: random.Random, topic: str, naming: str, wish: str, titled: bool) -> str:
    ask = choose(rng, f"{_ASK} {_WHAT}")
    short = wish.startswith(("Keep", "Make it short"))
    noun = "short story" if short and rng.random() < 0.3 else "story"
    about = f" about {topic}" if topic else ""
    end = "?" if ask.startswith("C") else "."
    title = choose(rng, "{Give it a title.|Start with a title.}") if titled else ""
    extras = [part for part in (naming, wish, title) if part]
    rng.shuffle(extras)
    return " ".join([f"{ask} {noun}{about}{end}", *extras])


def plain(rng: random.Random, split: Split) -> Example:
    """A story as a document of its own."""
    least, most = rng.choice(((40, 80), (80, 130), (120, 175)))
    story = tell(rng, split, least, most, title=rng.random() < 0.4)
    return Example(kind="story_plain", text=story.text)


MAKERS: dict[str, Maker] = {"stories": on_request, "story_plain": plain}
