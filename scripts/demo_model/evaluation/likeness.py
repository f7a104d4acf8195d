"""Perplexity on held-out documents, and how alike two models' logits are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from demo_model.evaluation.documents import Document

LogitsOf = Callable[[list[int]], NDArray[np.float32]]


@dataclass
class Perplexity:
    nats: float = 0.0
    num_tokens: int = 0

    @property
    def value(self) -> float:
        return float(np.exp(self.nats / self.num_tokens))

    def add(self, logits: NDArray[np.float32], document: Document) -> None:
        """Add the tokens that the model is to write, and no others."""
        places = np.flatnonzero(document.counted)
        rows = logits[places - 1].astype(np.float64)
        highest = rows.max(axis=1)
        totals = highest + np.log(np.exp(rows - highest[:, None]).sum(axis=1))
        chosen = rows[np.arange(len(places)), np.array(document.tokens)[places]]
        self.nats += float((totals - chosen).sum())
        self.num_tokens += len(places)


@dataclass
class Likeness:
    num_tokens: int = 0
    num_same: int = 0
    """The number of positions at which both models find the same token the likeliest."""
    largest: float = 0.0
    """The largest difference of two logits."""

    def add(self, left: NDArray[np.float32], right: NDArray[np.float32]) -> None:
        self.num_tokens += len(left)
        self.num_same += int((left.argmax(axis=1) == right.argmax(axis=1)).sum())
        self.largest = max(self.largest, float(np.abs(left - right).max()))


@dataclass
class Reading:
    """The result of reading some documents."""

    perplexity: Perplexity = field(default_factory=Perplexity)
    trained_perplexity: Perplexity = field(default_factory=Perplexity)
    likeness: Likeness = field(default_factory=Likeness)


def read(found: Iterable[Document], native: LogitsOf, trained: LogitsOf | None) -> Reading:
    """Read the documents. Without `trained`, its perplexity and the likeness stay empty."""
    reading = Reading()
    for document in found:
        logits = native(document.tokens)
        reading.perplexity.add(logits, document)
        if trained is not None:
            other = trained(document.tokens)
            reading.trained_perplexity.add(other, document)
            reading.likeness.add(logits, other)
    return reading
