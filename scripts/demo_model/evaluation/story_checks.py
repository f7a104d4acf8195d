"""Checks stories by simple rules: grammar, loops, names, length."""

from __future__ import annotations

import re
from collections import Counter

from demo_model.corpus.example import Example
from demo_model.corpus.words import a
from demo_model.evaluation.marks import Mark, mark
from demo_model.evaluation.texts import holds, words

_LOOP_WORDS = 6
_AFTER_STOP = re.compile(r'(\."?|[!?])\s+"?([a-z])')
"""A small letter where a sentence begins. Behind `?"` and `!"` a sentence may go on: "Who?" said Tom."""
_ARTICLE = re.compile(r"\b(an?) (\w+)", re.IGNORECASE)
_DOUBLED = re.compile(r"\b(\w+) \1\b", re.IGNORECASE)
_MAY_DOUBLE = {"had", "that", "very", "ha", "knock"}
_SENTENCE_END = re.compile(r'(?<=[.!?])"?\s+')


def score_story(example: Example, answer: str) -> list[Mark]:
    story = answer.strip()
    names, bounds = example.expected["names"], example.expected["words"]
    assert isinstance(names, list)
    assert isinstance(bounds, list)
    marks = [
        mark("stories: grammatical", not faults(story)),
        mark("stories: no loops", not loops(story)),
        mark("stories: length as asked", bounds[0] <= len(story.split()) <= bounds[1]),
    ]
    return (
        [*marks, mark("stories: names kept", all(holds(story, name) for name in names))] if names else marks
    )


def faults(story: str) -> list[str]:
    """The broken rules in words; [] if none was found. A title may stand before the text."""
    body = story.rpartition("\n\n")[2].strip()
    found = [f"{text!r} is followed by a small letter" for text, _ in _AFTER_STOP.findall(body)]
    found += [] if re.match(r'"?[A-Z]', body) else ["it does not begin with a capital"]
    found += [] if re.search(r'[.!?]"?$', body) else ["it does not end with a mark"]
    found += ["a quote is not closed"] if body.count('"') % 2 else []
    found += [f"{article} {word}" for article, word in _ARTICLE.findall(body) if not _fits(article, word)]
    doubled = (match[1].lower() for match in _DOUBLED.finditer(body))
    return found + [f"{word} {word}" for word in doubled if word not in _MAY_DOUBLE]


def loops(story: str) -> list[str]:
    """The sentences, and rows of six words, that come more than once."""
    sentences = Counter(sentence.strip('" ').lower() for sentence in _SENTENCE_END.split(story))
    told = words(story)
    rows = Counter(
        " ".join(told[place : place + _LOOP_WORDS]) for place in range(len(told) - _LOOP_WORDS + 1)
    )
    return [text for counted in (sentences, rows) for text, count in counted.items() if count > 1]


def _fits(article: str, word: str) -> bool:
    return a(word).split(" ")[0] == article.lower()
