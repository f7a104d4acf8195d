"""The corpus in tokens, made once and read through memory maps: rows of any length, end to end in one file.

A row is a document, or several conversations behind one another: so a long chat is not new to the model.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from demo_model.chat import END_OF_TEXT, Segment
from demo_model.documents import Document
from demo_model.tokenizer import encode_all

_BATCH = 2000
_CHAINED = 0.12
"""The share of the conversations to which others are joined, up to a random length."""
_LED = 0.5
"""The share of plain texts that begin with the token that ends a text,
so that their first word is learnt, too."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Row:
    kind: str
    tokens: list[int]
    learn: list[bool]
    """Which tokens the model is to write."""
    can_follow: bool = False

    def __add__(self, other: Row) -> Row:
        return Row("chain", self.tokens + other.tokens, self.learn + other.learn)


@dataclass(frozen=True)
class Rows:
    """Rows of tokens: row i is `tokens[starts[i] : starts[i + 1]]`."""

    tokens: NDArray[np.uint16]
    learn: NDArray[np.uint8]
    starts: NDArray[np.int64]
    kinds: NDArray[np.int16]
    kind_names: list[str]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    @classmethod
    def open(cls, folder: Path) -> Rows:
        return cls(
            np.memmap(folder / "tokens.u16", np.uint16, "r"),
            np.memmap(folder / "learn.u8", np.uint8, "r"),
            np.load(folder / "starts.npy"),
            np.load(folder / "kinds.npy"),
            json.loads((folder / "kinds.json").read_text()),
        )


def write_rows(folder: Path, rows: Iterable[Row]) -> int:
    """Write the rows; returns the number of tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    starts, kinds, names = [0], [], {}
    with (folder / "tokens.u16").open("wb") as tokens, (folder / "learn.u8").open("wb") as learn:
        for row in rows:
            tokens.write(np.asarray(row.tokens, np.uint16).tobytes())
            learn.write(np.asarray(row.learn, np.uint8).tobytes())
            starts.append(starts[-1] + len(row.tokens))
            kinds.append(names.setdefault(row.kind, len(names)))
    np.save(folder / "starts.npy", np.asarray(starts, np.int64))
    np.save(folder / "kinds.npy", np.asarray(kinds, np.int16))
    (folder / "kinds.json").write_text(json.dumps(list(names)))
    return starts[-1]


def encoded(documents: Iterable[Document], tokenizer: Tokenizer, longest: int, seed: int) -> Iterator[Row]:
    """A row for each document; those that are longer than `longest` are left out."""
    generator = random.Random(seed)
    remaining = iter(documents)
    while batch := list(islice(remaining, _BATCH)):
        spelt = [_parts(document, generator) for document in batch]
        pieces = iter(encode_all(tokenizer, [part.text for parts in spelt for part in parts]))
        for document, parts in zip(batch, spelt, strict=True):
            row = _row(document, [(next(pieces), part.learn) for part in parts])
            if len(row.tokens) <= longest:
                yield row


def chained(rows: Iterable[Row], longest: int, seed: int) -> Iterator[Row]:
    """The same documents, some of them joined to rows of up to `longest` tokens."""
    generator = random.Random(seed)
    chain: Row | None = None
    limit = longest
    for row in rows:
        if chain is not None and row.can_follow and len(chain.tokens) + len(row.tokens) <= limit:
            chain += row
        elif chain is None and not row.kind.startswith("plain") and generator.random() < _CHAINED / 4:
            chain, limit = row, generator.randint(longest // 4, longest)
        elif chain is not None and row.can_follow:
            yield chain
            chain = None
            yield row
        else:
            yield row
    if chain is not None:
        yield chain


def _parts(document: Document, generator: random.Random) -> Sequence[Segment]:
    if document.is_plain and generator.random() < _LED:
        return (Segment(END_OF_TEXT, learn=False), *document.segments)
    return document.segments


def _row(document: Document, parts: Sequence[tuple[list[int], bool]]) -> Row:
    tokens = [token for pieces, _ in parts for token in pieces]
    learn = [learnt for pieces, learnt in parts for _ in pieces]
    return Row(document.kind, tokens, learn, can_follow=document.can_follow)
