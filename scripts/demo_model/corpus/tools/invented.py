"""Tools that exist nowhere, with made-up names and parameters: their signature must be read."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_model.corpus import words
from demo_model.corpus.example import Split, ToolCall
from demo_model.corpus.phrasing import capital, chance, one_of
from demo_model.corpus.task_words import animal, city, company, first_name, invented, thing
from demo_model.corpus.tools.use import INTEGER, STRING, Schema, ToolUse, choice_of, tool

VERBS = ("find", "order", "open", "build", "check", "start", "book", "count", "move", "draw", "paint",
         "repair", "send",
         "print", "rent", "sort", "lock", "load", "feed", "stop")  # fmt: skip
LEVELS = (("low", "high"), ("small", "medium", "large"), ("slow", "fast"), ("left", "right"), ("day",
                                                                                               "night"),
          ("soft", "hard"), ("short", "long"), ("new", "old", "any"))  # fmt: skip
CHOICES = ("level", "mode", "size", "kind", "side", "speed", "state", "style")
NUMBERS = ("count", "number", "amount", "weight", "age", "length", "floor", "year")
WORDS = (
    "color",
    "name",
    "owner",
    "city",
    "place",
    "code",
    "label",
    "company",
    "animal",
    "target",
    "material",
)


@dataclass(frozen=True)
class Parameter:
    name: str
    schema: Schema
    value: object


def invented_tool(rng: random.Random, split: Split) -> ToolUse:
    verb, noun = rng.choice(VERBS), invented(rng, split) if chance(rng, 0.6) else thing(rng, split)
    name = rng.choice(("{v}_{n}", "{v}_{n}", "{n}_{v}", "{n}")).format(
        v=verb, n=noun.replace(" ", "_").replace("-", "_")
    )
    parameters = some_parameters(rng, split)
    left_out = parameters[-1:] if len(parameters) > 1 and chance(rng, 0.25) else []
    given = [one for one in parameters if one not in left_out]
    offered = tool(name, f"{capital(verb)} {words.a(noun)}", {one.name: one.schema for one in given},
                   {one.name: one.schema for one in left_out})  # fmt: skip
    call = ToolCall(name, {one.name: one.value for one in given})
    code = rng.randint(100, 9999)
    request = asked(rng, verb, noun, given)
    return ToolUse(
        offered, request, call, {"status": "done", "id": code}, f"Done. The id is {code}.", (str(code),)
    )


def some_parameters(rng: random.Random, split: Split) -> list[Parameter]:
    """One to three with different names."""
    found: list[Parameter] = []
    for make in rng.sample((a_word, a_word, a_number, a_choice), rng.choice((1, 2, 2, 3))):
        one = make(rng, split)
        found += [one] if one.name not in [other.name for other in found] else []
    return found


def a_word(rng: random.Random, split: Split) -> Parameter:
    name = rng.choice(WORDS) if chance(rng, 0.7) else invented(rng, split, 2)
    draws = {
        "color": lambda: rng.choice(words.COLORS), "name": lambda: first_name(rng, split),
        "owner": lambda: first_name(rng, split), "city": lambda: city(rng, split),
        "company": lambda: company(rng, split), "animal": lambda: animal(rng, split),
    }  # fmt: skip
    value = draws[name]() if name in draws else invented(rng, split)
    return Parameter(name, STRING, value)


def a_number(rng: random.Random, split: Split) -> Parameter:
    return Parameter(
        rng.choice(NUMBERS), INTEGER, rng.randint(1, 30) if chance(rng, 0.6) else rng.randint(31, 2000)
    )


def a_choice(rng: random.Random, split: Split) -> Parameter:
    options = rng.choice(LEVELS)
    return Parameter(rng.choice(CHOICES), choice_of(*options), rng.choice(options))


def asked(rng: random.Random, verb: str, noun: str, given: list[Parameter]) -> str:
    """With each value behind the name of its parameter, in any order."""
    order = rng.sample(given, len(given))
    spoken = words.join([f"{one.name} {one.value}" for one in order])
    listed = ", ".join(f"{one.name}: {one.value}" for one in order)
    return one_of(
        rng, ("[Please {v}|{V}] {n} with {s}.", "[I want to|Can you|Please] {v} {n}, {s}.", "{V} {n} ({l}).",
              "{V} {n}. {L}.", "I need you to {v} {n}: {l}."),
        v=verb, V=capital(verb), n=words.a(noun), s=spoken, l=listed, L=capital(listed),
    )  # fmt: skip
