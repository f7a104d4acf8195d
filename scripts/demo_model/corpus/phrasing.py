"""Wordings with choices in them, and the small pieces that every reading task is put together from."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

from demo_model.corpus.example import Role, Turn

INNERMOST = re.compile(r"\[([^\[\]]*)\]")
ENDS = (".", "!", "?", ":")


def vary(rng: random.Random, wording: str, **values: object) -> str:
    """Takes one of each `[this|that]`, from the inside out, then fills in the `{values}`."""
    found = INNERMOST.search(wording)
    while found:
        wording = wording[: found.start()] + rng.choice(found[1].split("|")) + wording[found.end() :]
        found = INNERMOST.search(wording)
    return wording.format(**values)


def one_of(rng: random.Random, wordings: Sequence[str], **values: object) -> str:
    return vary(rng, rng.choice(wordings), **values)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """With a capital in front and an end behind."""
    return capital(text) if text.endswith(ENDS) else capital(text) + "."


def chance(rng: random.Random, share: float) -> bool:
    return rng.random() < share


def system(text: str) -> Turn:
    return Turn(Role.SYSTEM, text)


def user(text: str) -> Turn:
    return Turn(Role.USER, text)


def assistant(text: str) -> Turn:
    return Turn(Role.ASSISTANT, text)
