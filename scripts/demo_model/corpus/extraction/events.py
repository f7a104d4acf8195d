"""Invitations and notices, and their JSON: title, date, time and place, null where the text is silent."""

from __future__ import annotations

import random

from demo_model.corpus.example import Example, Split
from demo_model.corpus.extraction.asking import Record, ask, nullable
from demo_model.corpus.phrasing import capital, chance, one_of, sentence
from demo_model.corpus.task_words import (
    city,
    clock,
    company,
    date,
    first_name,
    food,
    invented_name,
    spot,
    street,
)
from demo_model.corpus.words import DAYS, a, belongs, plural

SUBJECTS = ("chess", "jazz", "garden", "book", "music", "dance", "science", "school", "summer", "winter",
            "spring",
            "film", "art", "cooking", "poetry", "photo", "team", "family", "street", "charity", "language",
            "history",
            "farm", "toy", "yoga", "pottery", "swimming", "running", "theater", "sailing")  # fmt: skip
SHAPES = ("meeting", "party", "concert", "club", "workshop", "festival", "fair", "lesson", "show", "evening",
          "market",
          "course", "contest", "dinner", "talk", "reunion", "day", "night", "class",
          "exhibition")  # fmt: skip
TITLED = ("[please come|come] to the {v}", "you are invited to the {v}", "join us for the {v}",
          "[the|our] {v} is coming",
          "do not [miss|forget] the {v}", "we [invite you|are happy to invite you] to the {v}",
          "I want to tell you about the {v}")  # fmt: skip
TOLD = {
    "date": ("it [is|takes place] on {v}", "the date is {v}", "it will be on {v}",
             "[keep|save] the date: {v}",
             "come on {v}"),
    "time": ("it [starts|begins] at {v}", "[we start|we begin|doors open] at {v}", "be there at {v}",
             "the time is {v}"),
    "place": ("it [is|takes place] at the {v}", "[we meet|meet us|come to us] at the {v}",
              "the place is the {v}",
              "you find us at the {v}"),
    "organizer": ("[{v} is the host|{v} organizes it|the organizer is {v}|it is organized by {v}]",),
    "price": ("[tickets cost|a ticket costs|the entry costs] {v}", "the price is {v}",
              "[please bring|bring] {v} for the ticket"),
}  # fmt: skip
IN_ONE = ("the {title} [is|takes place] on {date} at {time} at the {place}",
          "[come|please come] to the {title} on {date} at {time}, at the {place}",
          "on {date} at {time} there is {a_title} at the {place}",
          "at {time} on {date} the {title} starts at the {place}")  # fmt: skip
LABELS = {
    "title": ("Event", "What", "Title"), "date": ("Date", "When", "Day"), "time": ("Time", "Start",
                                                                                   "Begins at"),
    "place": ("Place", "Where", "Location"), "organizer": ("Host", "Organizer"), "price": ("Price", "Ticket",
                                                                                           "Entry"),
}  # fmt: skip
ENDINGS = ("everyone is welcome", "please bring [cake|a friend|{food}|a chair]", "we hope to see you there",
           "there will be {food} for everyone", "[call|tell] {name} if you cannot come",
           "see you there")  # fmt: skip
MAIN = ("title", "date", "time", "place")


def make(rng: random.Random, split: Split) -> Example:
    values = event(rng, split)
    keys = [*MAIN, *(key for key in ("organizer", "price") if chance(rng, 0.2))]
    told = {key: values[key] for key in keys if key == "title" or chance(rng, 0.82)}
    text = rng.choice((notice, notice, notice, labelled))(rng, split, told)
    schemas = {key: nullable("string") if key != "title" else {"type": "string"} for key in keys}
    noun = rng.choice(("invitation", "message", "notice", "text", "email", "event"))
    answers = {key: told.get(key) for key in keys}
    return ask(
        rng, Record("extract_event", noun, text, answers, schemas, dict.fromkeys(keys, "string or null"))
    )


def event(rng: random.Random, split: Split) -> dict[str, str]:
    return {
        "title": title(rng, split), "date": rng.choice(DAYS) if chance(rng, 0.25) else date(rng),
        "time": clock(rng), "place": place(rng, split),
        "organizer": company(rng, split) if chance(rng, 0.4) else first_name(rng, split),
        "price": rng.choice(("${0}", "{0} dollars", "{0} euros", "${0}.50")).format(rng.randint(2, 60)),
    }  # fmt: skip


def title(rng: random.Random, split: Split) -> str:
    """Pairs of subject and shape are split; half the titles have an invented name in front."""
    while True:
        pair = f"{rng.choice(SUBJECTS)} {rng.choice(SHAPES)}"
        if belongs(split, pair):
            break
    if chance(rng, 0.5):
        return pair
    return f"{invented_name(rng, split) if chance(rng, 0.7) else city(rng, split)} {pair}"


def place(rng: random.Random, split: Split) -> str:
    """It goes behind "at the"."""
    if chance(rng, 0.4):
        return spot(rng, split)
    kind = rng.choice(("Hall", "Hotel", "Park", "School", "Center", "Garden", "House", "Library", "Cafe"))
    return f"{city(rng, split)} {kind}" if chance(rng, 0.5) else f"{invented_name(rng, split)} {kind}"


def notice(rng: random.Random, split: Split, told: dict[str, str]) -> str:
    body = in_one(rng, told) if all(key in told for key in MAIN) and chance(rng, 0.4) else apart(rng, told)
    if chance(rng, 0.5):
        body.append(one_of(rng, ENDINGS, food=plural(food(rng, split)), name=first_name(rng, split)))
    if chance(rng, 0.2):
        body[0] = f"{rng.choice(('hello', 'hi', 'dear'))} {first_name(rng, split)}, {body[0]}"
    return " ".join(sentence(one.strip()) for one in body)


def in_one(rng: random.Random, told: dict[str, str]) -> list[str]:
    rest = [key for key in told if key not in MAIN]
    return [
        one_of(rng, IN_ONE, a_title=a(told["title"]), **told),
        *(one_of(rng, TOLD[key], v=told[key]) for key in rest),
    ]


def apart(rng: random.Random, told: dict[str, str]) -> list[str]:
    keys = [key for key in told if key != "title"]
    rng.shuffle(keys)
    return [one_of(rng, TITLED, v=told["title"]), *(one_of(rng, TOLD[key], v=told[key]) for key in keys)]


def labelled(rng: random.Random, split: Split, told: dict[str, str]) -> str:
    keys = list(told)
    if chance(rng, 0.5):
        rng.shuffle(keys)
    lines = [f"{rng.choice(LABELS[key])}: {told[key]}" for key in keys]
    if chance(rng, 0.3):
        lines.append(f"Contact: {first_name(rng, split)}, {street(rng, split)}")
    return rng.choice(("\n", "\n", "; ")).join(capital(line) for line in lines)
