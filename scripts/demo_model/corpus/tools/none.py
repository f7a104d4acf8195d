"""Tools are at hand, but the answer needs none of them, or none of them fits."""

from __future__ import annotations

import random

from demo_model.corpus import task_words, words
from demo_model.corpus.example import Split, Turn
from demo_model.corpus.phrasing import assistant, capital, chance, one_of, user
from demo_model.corpus.task_words import first_name, invented_name
from demo_model.corpus.tools.use import ToolUse

NO_TOOL = ("I am sorry, I have no tool for that.", "Sorry, I have no tool for that.")
CHAT = (
    ("[Hello|Hi|Good morning|Good evening].", "Hello. How can I help you?"),
    ("[Hello|Hi], [my name is|I am] {n}.", "Hello, {n}. How can I help you?"),
    ("[How are you|How are you today]?", "I am fine, thank you."),
    ("[Thank you|Thanks|Thanks a lot].", "You are welcome."),
    ("[Say|Repeat|Please say] [the word |]{w}.", "{w_}."),
    ("[Who are you|What are you|Are you a person]?", "I am a tiny demo model."),
    ("I have {t}. What do I have?", "You have {t}."),
    ("{n} has {t} and {m} has {u}. What does {n} have?", "{n} has {t}."),
    ("{n} has {t} and {m} has {u}. Who has {u}?", "{m} has {u}."),
    ("My friend is called {n}. What is the name of my friend?", "Your friend is called {n}."),
    ("[Good bye|Bye|See you]!", "Good bye."),
    ("[Say hello to|Greet] {n}.", "Hello, {n}."),
    ("Which word is longer, {short} or {long}?", "{long_} is longer."),
)


def chat(rng: random.Random, split: Split) -> tuple[Turn, ...]:
    said, answered = rng.choice(CHAT)
    one, two = words.several(lambda: first_name(rng, split), 2)
    things = words.several(lambda: words.a(task_words.thing(rng, split)), 2)
    short, long = rng.choice((("cat", "elephant"), ("sun", "mountain"), ("pea", "potato"), ("ice", "winter")))
    if chance(rng, 0.5):
        said = said.replace("{short} or {long}", "{long} or {short}")
    word = invented_name(rng, split).lower()
    values = {"n": one, "m": two, "t": things[0], "u": things[1], "w": word, "w_": capital(word),
              "short": short,
              "long": long, "long_": capital(long)}  # fmt: skip
    return user(one_of(rng, (said,), **values)), assistant(one_of(rng, (answered,), **values))


def without_tool(rng: random.Random, use: ToolUse) -> tuple[Turn, ...]:
    """Asked for something whose tool is not offered."""
    return user(use.request), assistant(rng.choice(NO_TOOL))
