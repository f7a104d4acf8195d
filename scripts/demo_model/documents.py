"""The corpus as a file: one JSON object per line, made by any number of processes with the same bytes."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from demo_model.chat import START, Segment, compact, segments
from demo_model.corpus.example import Example, Split
from demo_model.corpus.mixture import whole_mixture

_BATCH = 500
"""Documents that a process makes at a time."""

Progress = Callable[[int, int], None]
"""Told documents written and documents in all."""


@dataclass(frozen=True)
class Document:
    kind: str
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)

    @property
    def is_plain(self) -> bool:
        return not self.segments[0].text.startswith(START)

    @property
    def can_follow(self) -> bool:
        """A conversation that may go on behind another: it brings no system turn of its own."""
        return self.segments[0].text.startswith(f"{START}user\n")


def write_documents(path: Path, split: Split, count: int, *, seed: int, jobs: int, told: Progress) -> None:
    """Write the file whole or not at all."""
    batches = [(seed, split, first, min(first + _BATCH, count)) for first in range(0, count, _BATCH)]
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file, multiprocessing.Pool(jobs) as pool:
            for done, text in enumerate(pool.imap(_batch_text, batches), start=1):
                file.write(text)
                told(min(done * _BATCH, count), count)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_documents(path: Path, count: int | None = None) -> Iterator[Document]:
    """The first `count`, or all."""
    with path.open(encoding="utf-8") as file:
        for line in itertools.islice(file, count):
            fields = json.loads(line)
            parts = tuple(Segment(text, bool(learn)) for text, learn in fields["segments"])
            yield Document(fields["kind"], parts)


def _batch_text(batch: tuple[int, Split, int, int]) -> str:
    seed, split, first, end = batch
    mixture = whole_mixture(seed)
    return "".join(_line(mixture.document(split, index)) for index in range(first, end))


def _line(example: Example) -> str:
    parts = [[segment.text, int(segment.learn)] for segment in segments(example)]
    return compact({"kind": example.kind, "segments": parts}) + "\n"
