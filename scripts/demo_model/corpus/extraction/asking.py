"""How an extraction is asked for: which keys, in which words, in which turn, before or after the text."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from demo_model.corpus.example import Example, Turn
from demo_model.corpus.phrasing import assistant, chance, compact, one_of, system, user, vary
from demo_model.corpus.words import join


@dataclass(frozen=True)
class Record:
    """A text and what stands in it. The keys of `values` stand in the answer's order."""

    kind: str
    noun: str
    """What the text is called in a request: "review"."""
    text: str
    values: Mapping[str, object]
    schemas: Mapping[str, Mapping[str, object]]
    sketch: Mapping[str, str]
    """What stands for a value in a format by example: "1-5", "[string]"."""


NAMED = (
    "[Extract|Get|Find] the {keys} [from|in] [this|the] {noun} [as JSON|and answer with JSON|in JSON form].",
    "[Return|Write|Give me|Make] [a JSON object|JSON] with the keys {keys} for [this|the] {noun}.",
    "[Read|Look at] the {noun} and [fill in|return|give me] this as JSON: {keys}.",
    "[Turn|Convert|Change] [this|the] {noun} into JSON with {keys}.",
    "[Answer|Reply] only with JSON. [Keys|Fields]: {keys}.",
    "What [are|is] the {keys} in [this|the] {noun}? [Answer|Reply] [in|with|as] JSON.",
    "[I want|Please give me|Write] JSON with {keys}.",
)
WITH_SCHEMA = (
    "[Extract|Get] the data [from|in] [this|the] {noun} as JSON [that fits|with] this schema: {schema}",
    "[Answer|Reply] with JSON [that fits|that matches|for] this schema:\n{schema}",
    "Schema: {schema}\n[Fill it in|Fill it] from the {noun}.",
)
WITH_SKETCH = (
    "[Answer|Reply] [in|with] this [format|form]: {sketch}",
    "[Fill in|Fill] this JSON from the {noun}: {sketch}",
    "[Turn|Convert] the {noun} into JSON like this: {sketch}",
)
WHOLE = (
    "[Extract|Get] the [data|details|information] of [this|the] {noun} as JSON ({keys}).",
    "[Turn|Convert] [this|the] {noun} into [JSON|a JSON object] with the keys {keys}.",
)
MISSING = (
    "[Use null for|Write null for|Put null for] [what is missing|missing values|anything that is not there]."
)
LABELS = ("{title}: {text}", "{title}:\n{text}", "{text}", '"{text}"', "Text: {text}")


def asked_keys(rng: random.Random, record: Record) -> list[str]:
    """All of them, or some of them in the same order."""
    keys = list(record.values)
    if chance(rng, 0.65):
        return keys
    chosen = rng.sample(keys, rng.randint(1, len(keys)))
    return [key for key in keys if key in chosen]


def instruction(rng: random.Random, record: Record, keys: list[str]) -> str:
    quoted = (
        [f'"{key}"' for key in keys]
        if chance(rng, 0.3)
        else [key.replace("_", rng.choice("_ ")) for key in keys]
    )
    words = {"keys": join(quoted, rng.choice(("and", "and", "and", "&"))), "noun": record.noun}
    way = rng.random()
    if way < 0.12:
        return one_of(rng, WITH_SCHEMA, schema=compact(schema_of(record, keys)), **words)
    if way < 0.25:
        sketch = ",".join(f'"{key}":{record.sketch[key]}' for key in keys)
        return one_of(rng, WITH_SKETCH, sketch="{" + sketch + "}", **words)
    return one_of(rng, WHOLE if keys == list(record.values) and chance(rng, 0.3) else NAMED, **words)


def schema_of(record: Record, keys: list[str]) -> dict[str, object]:
    return {"type": "object", "properties": {key: record.schemas[key] for key in keys}, "required": keys}


def ask(rng: random.Random, record: Record) -> Example:
    keys = asked_keys(rng, record)
    answer = {key: record.values[key] for key in keys}
    wanted = instruction(rng, record, keys)
    if None in answer.values() or chance(rng, 0.2):
        wanted += " " + vary(rng, MISSING) if chance(rng, 0.7) else ""
    turns = (*laid_out(rng, record, wanted), assistant(compact(answer)))
    return Example(kind=record.kind, turns=turns, expected={"json": answer})


def laid_out(rng: random.Random, record: Record, wanted: str) -> tuple[Turn, ...]:
    """The instruction in the system turn, or with the text, before or after it."""
    shown = rng.choice(LABELS).format(title=record.noun.capitalize(), text=record.text)
    way = rng.random()
    if way < 0.25:
        return system(wanted), user(shown)
    gap = rng.choice(("\n\n", "\n\n", "\n", " "))
    return (user(wanted + gap + shown),) if way < 0.75 else (user(shown + gap.replace(" ", "\n") + wanted),)


def nullable(kind: str) -> dict[str, object]:
    return {"type": [kind, "null"]}
