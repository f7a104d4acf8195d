"""Answering questions about a paragraph that stands in the prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_model.corpus import words
from demo_model.corpus.example import Example, Maker, Split, Turn
from demo_model.corpus.phrasing import assistant, capital, chance, one_of, system, user
from demo_model.corpus.scenes import EVENT, OUTING, PERSON, PLACE, FactKind
from demo_model.corpus.task_words import invented_name, person

SILENT = "The text does not say."
TASKS = ("[Answer|Please answer] the question[ about the text|].", "Read the text and answer the question.",
         "[Use|Look at] the text to answer.", "[Here is|This is] a text. Answer the question.",
         "Answer from the text.")  # fmt: skip
BRIEF = (
    "Answer in a few words.",
    "[Give a short answer|Answer shortly|Be brief].",
    "Use as few words as you can.",
)
HONEST = ("If the text does not say it, [say so|tell me].", "Only use [the text|what the text says].")


@dataclass(frozen=True)
class Fact:
    """One told sentence and what can be asked about it."""

    kind: FactKind
    subject: words.Person
    value: str

    def filled(self, rng: random.Random, wording: str, value: str | None = None) -> str:
        someone = self.subject
        pronouns = {"he": someone.he, "him": someone.him, "his": someone.his}
        names = {"name": someone.name, "he_": capital(someone.he), "his_": capital(someone.his)}
        said = (self.value if value is None else value).format(**pronouns)
        return capital(one_of(rng, (wording,), v=said, **pronouns, **names))

    @property
    def plain_value(self) -> str:
        """The value as it stands in the sentence."""
        return self.value.format(he=self.subject.he, his=self.subject.his)


@dataclass(frozen=True)
class Asked:
    question: str
    answer: str
    short: str
    key: str
    """What must be in the answer."""


def make(rng: random.Random, split: Split) -> Example:
    shown, hidden = facts(rng, split)
    text = told(rng, shown)
    brief = chance(rng, 0.4)
    asked = questions(rng, split, shown, hidden)
    turns = list(opening(rng, text, asked[0].question, brief))
    for place, one in enumerate(asked):
        turns += [user(one.question)] if place else []
        turns.append(assistant(one.short if brief else one.answer))
    if split is Split.TRAIN and chance(rng, 0.06):
        return Example("paragraph_qa", text=as_text(text, asked))
    return Example(
        "paragraph_qa", tuple(turns), expected={"answer": as_answered(asked[-1].key, turns[-1].text)}
    )


def as_answered(key: str, answer: str) -> str:
    """A short answer begins with a capital."""
    return key if key in answer else capital(key)


def facts(rng: random.Random, split: Split) -> tuple[list[Fact], list[Fact]]:
    """Those that the paragraph tells, and one or two that it leaves out."""
    if chance(rng, 0.35):
        return several_people(rng, split)
    kinds, subject = rng.choice(((PERSON, person), (OUTING, person), (PLACE, a_place), (EVENT, an_event)))
    someone = subject(rng, split)
    chosen = rng.sample(kinds, rng.randint(5, min(8, len(kinds))))
    made = [Fact(kind, someone, kind.draw(rng, split)) for kind in chosen]
    left_out = rng.randint(1, 2)
    return made[:-left_out], made[-left_out:]


def several_people(rng: random.Random, split: Split) -> tuple[list[Fact], list[Fact]]:
    """Two or three people and the same kinds of facts about each, with different values."""
    subjects = distinct_people(rng, split, rng.choice((2, 2, 3)))
    usable = [kind for kind in rng.choice((PERSON, OUTING)) if kind.who]
    kinds = rng.sample(usable, 3 if len(subjects) == 2 else 2)
    made = [
        Fact(kind, someone, value)
        for kind in kinds
        for someone, value in zip(subjects, different(rng, split, kind, len(subjects)), strict=True)
    ]
    shown = [fact for fact in made if chance(rng, 0.85)] or made
    return shown, [fact for fact in made if fact not in shown]


def distinct_people(rng: random.Random, split: Split, count: int) -> list[words.Person]:
    found: list[words.Person] = []
    while len(found) < count:
        someone = person(rng, split)
        if someone.name not in [other.name for other in found]:
            found.append(someone)
    return found


def different(rng: random.Random, split: Split, kind: FactKind, count: int) -> list[str]:
    return words.several(lambda: kind.draw(rng, split), count)


def a_place(rng: random.Random, split: Split) -> words.Person:
    kind = rng.choice(("Museum", "Hotel", "Library", "Zoo", "Theater", "Castle", "Cafe", "School", "Gallery"))
    return words.Person(f"the {invented_name(rng, split)} {kind}", "it", "it", "its")


def an_event(rng: random.Random, split: Split) -> words.Person:
    kind = rng.choice(("festival", "concert", "party", "fair", "contest", "show", "feast", "race", "dance"))
    front = rng.choice((*words.SEASONS, "village", "music", "kite", "boat", invented_name(rng, split)))
    return words.Person(f"the {front} {kind}", "it", "it", "its")


def told(rng: random.Random, shown: Sequence[Fact]) -> str:
    """Sentences in any order. A pronoun stands only where one person is spoken of, and never first."""
    order = rng.sample(list(shown), len(shown))
    if chance(rng, 0.5):
        order.sort(key=lambda fact: fact.subject.name)
    alone = len({fact.subject.name for fact in shown}) == 1
    return " ".join(sentence_of(rng, fact, alone and place > 0) for place, fact in enumerate(order))


def sentence_of(rng: random.Random, fact: Fact, known: bool) -> str:
    wordings = [wording for wording in fact.kind.told if known or "{name}" in wording]
    if known and chance(rng, 0.5):
        wordings = [
            wording.replace("{name}", "{he}") if wording.startswith("{name}") else wording
            for wording in wordings
        ]
    return fact.filled(rng, rng.choice(wordings))


def questions(rng: random.Random, split: Split, shown: Sequence[Fact], hidden: Sequence[Fact]) -> list[Asked]:
    """One to three, about different facts."""
    count = rng.choice((1, 1, 1, 2, 3))
    asked = [about_shown(rng, split, fact, shown) for fact in rng.sample(list(shown), min(count, len(shown)))]
    if hidden and chance(rng, 0.15):
        asked[rng.randrange(len(asked))] = about_hidden(rng, rng.choice(hidden))
    return asked


def about_shown(rng: random.Random, split: Split, fact: Fact, shown: Sequence[Fact]) -> Asked:
    way = rng.random()
    answer = fact.filled(rng, fact.kind.told[0])
    if way < 0.2:
        return yes_or_no(rng, split, fact, answer)
    if way < 0.4 and fact.kind.who and only_one(fact, shown):
        return Asked(fact.filled(rng, fact.kind.who), answer, f"{fact.subject.name}.", fact.subject.name)
    short = fact.filled(rng, fact.kind.short) + "."
    return Asked(fact.filled(rng, rng.choice(fact.kind.asked)), answer, short, fact.plain_value)


def only_one(fact: Fact, shown: Sequence[Fact]) -> bool:
    return sum(other.kind is fact.kind and other.value == fact.value for other in shown) == 1


def yes_or_no(rng: random.Random, split: Split, fact: Fact, answer: str) -> Asked:
    if chance(rng, 0.5):
        return Asked(fact.filled(rng, fact.kind.checked), f"Yes, {uncapital(fact, answer)}", "Yes.", "Yes")
    wrong = words.several(lambda: fact.kind.draw(rng, split), 1, besides=[fact.value])[0]
    return Asked(fact.filled(rng, fact.kind.checked, wrong), f"No, {uncapital(fact, answer)}", "No.", "No")


def uncapital(fact: Fact, answer: str) -> str:
    """Behind "yes," only names keep their capital."""
    named = answer.startswith((fact.subject.name, fact.plain_value))
    return answer if named else answer[0].lower() + answer[1:]


def about_hidden(rng: random.Random, fact: Fact) -> Asked:
    return Asked(fact.filled(rng, rng.choice(fact.kind.asked)), SILENT, SILENT, "does not say")


def opening(rng: random.Random, text: str, question: str, brief: bool) -> tuple[Turn, ...]:
    """The paragraph and the first question, in either order, with or without the task in words."""
    task = [one_of(rng, TASKS)] if chance(rng, 0.6) else []
    task += [one_of(rng, BRIEF)] if brief else []
    task += [one_of(rng, HONEST)] if chance(rng, 0.2) else []
    labels = rng.choice((("", ""), ("", ""), ("Text: ", "Question: "), ("Text:\n", "Question:\n")))
    parts = [labels[0] + text, labels[1] + question]
    way = rng.random()
    if way < 0.15:
        return system("\n\n".join((*([" ".join(task)] if task else []), parts[0]))), user(question)
    if chance(rng, 0.3):
        parts.reverse()
    if way < 0.35 and task:
        return system(" ".join(task)), user("\n\n".join(parts))
    spot = 0 if chance(rng, 0.7) else len(parts)
    parts[spot:spot] = [" ".join(task)] if task else []
    return (user(rng.choice(("\n\n", "\n\n", "\n")).join(parts)),)


def as_text(text: str, asked: Sequence[Asked]) -> str:
    """As plain text, for completion."""
    lines = [f"Question: {one.question}\nAnswer: {one.answer}" for one in asked]
    return "\n".join((f"Text: {text}", *lines))


MAKERS: dict[str, Maker] = {"paragraph_qa": make}
