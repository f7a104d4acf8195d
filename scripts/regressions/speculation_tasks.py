"""Tasks of *speculation*: random tokens, and conversations for a trained model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import schemas
from bench.asking import Ask
from bench.prompts import RandomPrompts, random_tokens
from bench.prose import talks
from bench.workloads.batches import clients_in_words, questions

_ANSWER_TOKENS = 320
_PEOPLE = ("Anna", "Omar", "Chen", "Ines", "Pavel", "Ruth", "Kofi", "Leila", "Tomas", "Yuki")
_THINGS = ("lamp", "kettle", "backpack", "chair", "radio", "umbrella", "desk", "kite", "clock", "basket")
_PLACES = ("mill", "harbour", "market", "library", "station", "garden", "bridge", "museum", "bakery", "farm")
_PRAISED = ("the low price", "the warm colour", "the light weight", "the solid handle", "the quick delivery")
_BLAMED = ("the cable is too short", "the lid is loose", "it smells of glue", "it is hard to clean")


@dataclass(frozen=True)
class Task:
    what: str
    clients: int
    asks: Callable[[int, int], Sequence[Ask]]
    """Requests of a round, with this many output tokens each if nothing else ends them."""


def tasks(model: Path) -> tuple[Task, ...]:
    return TASKS + TEXT_TASKS if talks(model) else TASKS


def draft_model(model: Path) -> Path | None:
    path = model.with_name(f"{model.stem}-draft{model.suffix}")
    return path if path.is_file() else None


def quoting(number: int, tokens: int, clients: int) -> list[Ask]:
    """Return greedy answers, long enough for an untrained model to begin to repeat itself."""
    found = []
    for i in range(clients):
        passage = random_tokens(60, "speculation", number, i)
        found.append(Ask(prompt=passage * 3 + passage[:12], max_tokens=3 * tokens, seed=i, temperature=0.0))
    return found


def filling_json(number: int, tokens: int, clients: int) -> list[Ask]:
    asked = questions(RandomPrompts(), 80, [7 * tokens] * clients, "speculation json", number)
    return schemas.following(asked)


def free(number: int, tokens: int, clients: int) -> list[Ask]:
    return questions(RandomPrompts(), 80, [tokens] * clients, "speculation free", number)


def conversations(
    write: Callable[[random.Random], str], number: int, count: int, temperature: float
) -> list[Ask]:
    """Return requests of a user, in the model's chat template. Each round has others."""
    asked = (write(random.Random(f"{write.__name__}/{number}/{i}")) for i in range(count))
    return [
        Ask(
            messages=({"role": "user", "content": text},),
            max_tokens=_ANSWER_TOKENS,
            seed=i,
            temperature=temperature,
        )
        for i, text in enumerate(asked)
    ]


def repeating(choose: random.Random) -> str:
    told = " ".join(
        f"{choose.choice(_PEOPLE)} carried the {choose.choice(_THINGS)} from the {choose.choice(_PLACES)} "
        f"to the {choose.choice(_PLACES)} at {choose.randint(1, 12)} o'clock."
        for _ in range(6)
    )
    return f"Repeat this text: {told}"


def extracting(choose: random.Random) -> str:
    good, better = choose.sample(_PRAISED, 2)
    review = (
        f"{choose.choice(_PEOPLE)} bought this {choose.choice(_THINGS)} for {choose.randint(5, 95)} dollars. "
        f"I like {good} and {better}. Sadly, {choose.choice(_BLAMED)}. {choose.randint(1, 5)} out of 5 stars."
    )
    return f"Extract the rating, pros, cons and summary from this review as JSON.\n\n{review}"


def telling(choose: random.Random) -> str:
    first, second = choose.sample(_PEOPLE, 2)
    about = f"a {choose.choice(_THINGS)} and a {choose.choice(_PLACES)}"
    return f"Write a short story about {about}. The names are {first} and {second}."


def _talk(what: str, clients: int, write: Callable[[random.Random], str], temperature: float) -> Task:
    """--quick asks for few tokens of output; a dozen stand for an answer."""
    return Task(
        f"{what}, {clients_in_words(clients)}",
        clients,
        lambda number, tokens: conversations(write, number, clients * max(2, tokens // 12), temperature),
    )


TASKS = (
    Task("random tokens, quoted, 1 client", 1, lambda number, tokens: quoting(number, tokens, 1)),
    Task("random tokens, quoted, 4 clients", 4, lambda number, tokens: quoting(number, tokens, 4)),
    Task("random tokens, quoted, 16 clients", 16, lambda number, tokens: quoting(number, tokens, 16)),
    Task("JSON by schema, 1 client", 1, lambda number, tokens: filling_json(number, tokens, 2)),
    Task("JSON by schema, 8 clients", 8, lambda number, tokens: filling_json(number, tokens, 8)),
    Task("random tokens, free, 1 client", 1, lambda number, tokens: free(number, tokens, 1)),
    Task("random tokens, free, 16 clients", 16, lambda number, tokens: free(number, tokens, 16)),
)
TEXT_TASKS = tuple(
    _talk(what, clients, write, temperature)
    for what, write, temperature in (
        ("answers that quote", repeating, 0.0),
        ("JSON of what is told", extracting, 0.0),
        ("stories", telling, 0.8),
    )
    for clients in (1, 8)
)
