"""Held-out documents in tokens, for perplexity and for comparing logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo_model.chat import segments
from demo_model.corpus.example import Example, Split
from demo_model.corpus.mixture import Mixture

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Document:
    is_plain: bool
    tokens: list[int]
    counted: NDArray[np.bool_]
    """Whether the model is to write each token. The first one follows nothing and never counts."""


def documents(
    mixture: Mixture, encode: Encode, *, plain: bool, tokens: int, longest: int
) -> Iterator[Document]:
    """Plain texts or conversations, until `tokens` are reached; longer ones than `longest` are left out."""
    reached, index = 0, 0
    while reached < tokens:
        example = mixture.document(Split.HELD_OUT, index)
        index += 1
        if (example.text is not None) is plain:
            document = _encoded(example, encode)
            if len(document.tokens) <= longest:
                reached += len(document.tokens)
                yield document


def _encoded(example: Example, encode: Encode) -> Document:
    tokens: list[int] = []
    counted: list[bool] = []
    for segment in segments(example):
        pieces = encode(segment.text)
        tokens += pieces
        counted += [segment.learn] * len(pieces)
    counted[0] = False
    return Document(example.text is not None, tokens, np.array(counted))
