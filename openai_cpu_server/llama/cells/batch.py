"""The tokens of one step, laid out as llama.cpp wants them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from openai_cpu_server.contract.step import Span
from openai_cpu_server.llama.bindings import llama_cpp


class OutputRows(NamedTuple):
    """The rows of the step's logits that belong to one span:
    those of its targets, and those to sample from."""

    targets: range
    samples: range
    """One row for the last token and one for each draft token; empty if nothing is sampled."""


class BatchLayout(NamedTuple):
    """Which rows of logits each span gets, and how many rows there are."""

    rows: list[OutputRows]
    num_outputs: int


class TokenBatch:
    """A `llama_batch` whose arrays belong to numpy, so that there is nothing to free."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._slots = np.zeros(capacity, np.int32)
        self._wants_logits = np.zeros(capacity, np.int8)
        self._slot_counts = np.ones(capacity, np.int32)
        row = self._slots.itemsize * np.arange(capacity, dtype=np.uintp)
        self._slot_pointers = np.uintp(self._slots.ctypes.data) + row
        self.native = self._native()

    def fill(self, spans: Sequence[Span]) -> BatchLayout:
        """Replace the content of the batch by these spans."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wants: list[int] = []
        rows = []
        num_outputs = 0
        for span in spans:
            length = span.num_tokens
            tokens += span.tokens
            tokens += span.draft
            positions += range(span.start, span.start + length)
            slots += repeat(span.slot, length)
            wants += _wants(span)
            rows.append(_rows(span, num_outputs))
            num_outputs += _num_outputs(span)
        self._store(tokens, positions, slots, wants)
        return BatchLayout(rows, num_outputs)

    def _store(self, tokens: list[int], positions: list[int], slots: list[int], wants: list[int]) -> None:
        count = len(tokens)
        assert 0 < count <= self.capacity, f"{count} tokens in a step of at most {self.capacity}"
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._slots[:count] = slots
        self._wants_logits[:count] = wants
        self.native.n_tokens = count

    def _native(self) -> llama_cpp.llama_batch:
        batch = llama_cpp.llama_batch()
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._slot_counts),
            ("seq_id", self._slot_pointers),
            ("logits", self._wants_logits),
        ):
            kind = dict(llama_cpp.llama_batch._fields_)[name]
            setattr(batch, name, array.ctypes.data_as(kind))
        return batch


def _num_outputs(span: Span) -> int:
    """The number of rows of logits that the span needs.
    The last token's row may serve a target and the sample."""
    samples = span.sample and len(span.targets) < len(span.tokens)
    return len(span.targets) + samples + len(span.draft)


def _wants(span: Span) -> list[int]:
    length, scored = len(span.tokens), len(span.targets)
    assert length > 0, "an empty span"
    assert scored <= length, f"{scored} targets for {length} tokens"
    assert not span.draft or (span.sample and not scored), "a draft where it is of no use"
    assert not span.num_to_draft, "a draft that was not made"
    wants = [1] * scored + [0] * (length - scored)
    if span.sample:
        wants[-1] = 1
    return wants + [1] * len(span.draft)


def _rows(span: Span, first: int) -> OutputRows:
    """The span's rows; `first` is its first row.
    The sample comes from the last token's row, a target's or its own."""
    scored = len(span.targets)
    sampled = first + min(scored, len(span.tokens) - 1)
    end = sampled + 1 + len(span.draft) if span.sample else sampled
    return OutputRows(range(first, first + scored), range(sampled, end))
