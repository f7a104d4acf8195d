"""Finds whether a text contains what it should."""

from __future__ import annotations

import json
import re

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WORD = re.compile(r"\w+")


def holds(text: str, phrase: str) -> bool:
    """Whether the text contains these words whole.
    The case of the first letter is free: it may begin a sentence."""
    if not phrase:
        return False
    first, rest = re.escape(phrase[0]), re.escape(phrase[1:])
    return re.search(rf"(?<!\w)(?i:{first}){rest}(?!\w)", text) is not None


def last_number(text: str) -> str | None:
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def words(text: str) -> list[str]:
    """The words in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def parsed(text: str) -> object | None:
    """The JSON value; None for anything else."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found


def same_json(left: object, right: object) -> bool:
    """Whether two values are the same, their types included: 1 is neither true nor 1.0."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
