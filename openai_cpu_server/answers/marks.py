"""What vectors of sentences hardly tell from one another, though answers depend on it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|nowhere|neither|nor|without|cannot|except|unless)\b|n['’]t\b",
    re.IGNORECASE,
)
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")


def marks_of(text: str) -> Sequence[object]:
    """Its numbers in their order, its capitals such as US, and how often it says no, in English.

    Vectors of sentences hardly tell these from one another. Measured on all-MiniLM-L6-v2: "Is it safe to eat
    raw eggs?" and "Is it not safe to eat raw eggs?" have a cosine of 0.993. So turns are compared only where
    these marks agree.
    """
    return [_NUMBER.findall(text), _CAPITALS.findall(text), len(_NEGATION.findall(text))]
