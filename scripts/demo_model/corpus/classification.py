"""Classification: sentiment, topic or language of a text, as a word or JSON; the prompt has the labels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo_model.corpus.example import Example, Maker, Split, Turn
from demo_model.corpus.languages import LANGUAGES, phrase
from demo_model.corpus.phrasing import assistant, chance, compact, one_of, system, user
from demo_model.corpus.sentiments import felt
from demo_model.corpus.topics import TOPICS, on_topic
from demo_model.corpus.words import join

Write = Callable[[random.Random, Split, str], str]


@dataclass(frozen=True)
class Task:
    kind: str
    key: str
    """What the label is of: "topic". Also the key of the JSON answer."""
    labels: tuple[str, ...]
    write: Write
    nouns: tuple[str, ...]
    """What the text is called."""
    choose: int
    """The fewest labels that are offered."""


SENTIMENT = Task("classify_sentiment", "sentiment", ("positive", "negative", "neutral"), felt,
                 ("text", "review", "sentence", "comment", "message"), 2)  # fmt: skip
TOPIC = Task("classify_topic", "topic", tuple(TOPICS), on_topic, ("text", "sentence", "news", "message"), 3)
LANGUAGE = Task("classify_language", "language", tuple(LANGUAGES), phrase, ("text", "phrase", "sentence"), 3)

AS_WORD = (
    "What is the {key} of [this|the] {noun}? [Choose one|Choose from|Pick one]: {labels}.",
    "[Classify|Label|Sort] the {noun} by {key}. [Labels|Choices|Options]: {labels}. [Answer|Reply] with one "
    "word.",
    "[Classify|Label] [this|the] {noun} as {either}.",
    "Is the {key} {either}? One word.",
    "{key_}: {either}? [Answer|Reply] with [the label only|one word|one label].",
    "[Decide|Say] if the {key} is {either}. [Only answer|Answer only] with the label.",
)
AS_JSON = (
    "[Classify|Label] the {noun} by {key}: {labels}. [Answer|Reply] [as|with] JSON like "
    '{{"{json_key}":"..."}}.',
    "What is the {key} of the {noun}? [Labels|Choices]: {labels}. [Answer|Reply] with JSON, key {json_key}.",
    '[Return|Write] JSON with the key "{json_key}". [It is one of|Allowed values]: {labels}.',
    'The {key} is {either}. [Return|Answer with] {{"{json_key}": label}} [only|and nothing else].',
    "[Answer|Reply] with JSON for this schema: {schema}",
)
SHOWN = ("{text}", "{text}", '"{text}"', "{noun}: {text}", '{noun}: "{text}"', "Text: {text}")


def make(task: Task, rng: random.Random, split: Split) -> Example:
    offered = labels_of(rng, task)
    label = rng.choice(offered)
    json_key = (
        rng.choice((task.key, task.key, "label", "label", "class", "category")) if chance(rng, 0.45) else ""
    )
    answer = label if not json_key else compact({json_key: label})
    wanted = instruction(rng, task, offered, json_key)
    turns = (*laid_out(rng, wanted, shown(rng, task, split, label)), assistant(answer))
    turns += another(rng, task, split, offered, json_key) if chance(rng, 0.2) else ()
    return Example(task.kind, turns, expected=expected(turns[-1].text, offered, json_key))


def labels_of(rng: random.Random, task: Task) -> list[str]:
    """Some of the labels in any order; a few examples write them with capitals."""
    count = len(task.labels) if chance(rng, 0.4) else rng.randint(task.choose, len(task.labels))
    offered = rng.sample(task.labels, min(count, 6))
    if task is LANGUAGE or chance(rng, 0.85):
        return offered
    return (
        [label.upper() for label in offered]
        if chance(rng, 0.3)
        else [label.capitalize() for label in offered]
    )


def instruction(rng: random.Random, task: Task, offered: Sequence[str], json_key: str) -> str:
    schema = {"type": "object", "properties": {json_key: {"enum": list(offered)}}, "required": [json_key]}
    return one_of(
        rng, AS_JSON if json_key else AS_WORD, key=task.key, key_=task.key.capitalize(),
        noun=rng.choice(task.nouns),
        labels=", ".join(offered), either=join(offered, "or"), json_key=json_key, schema=compact(schema),
    )  # fmt: skip


def shown(rng: random.Random, task: Task, split: Split, label: str) -> str:
    own = next(known for known in task.labels if known.lower() == label.lower())
    return rng.choice(SHOWN).format(
        text=task.write(rng, split, own), noun=rng.choice(task.nouns).capitalize()
    )


def laid_out(rng: random.Random, wanted: str, text: str) -> tuple[Turn, ...]:
    """The instruction in the system turn, or with the text, before or after it."""
    way = rng.random()
    if way < 0.3:
        return system(wanted), user(text)
    gap = rng.choice(("\n\n", "\n"))
    return (user(wanted + gap + text),) if way < 0.75 else (user(text + gap + wanted),)


def another(
    rng: random.Random, task: Task, split: Split, offered: Sequence[str], json_key: str
) -> tuple[Turn, ...]:
    """A second text, for which the same instruction holds."""
    label = rng.choice(offered)
    answer = compact({json_key: label}) if json_key else label
    lead = rng.choice(("", "", "And this: ", "Next: ", "Now this one: "))
    return user(lead + shown(rng, task, split, label)), assistant(answer)


def expected(answer: str, offered: Sequence[str], json_key: str) -> dict[str, object]:
    if not json_key:
        return {"answer": answer}
    return {"json": {json_key: next(label for label in offered if compact({json_key: label}) == answer)}}


def maker(task: Task) -> Maker:
    return lambda rng, split: make(task, rng, split)


MAKERS: dict[str, Maker] = {task.kind: maker(task) for task in (SENTIMENT, TOPIC, LANGUAGE)}
