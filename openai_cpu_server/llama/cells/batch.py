"""Batches in llama.cpp's layout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.step import Span
from openai_cpu_server.llama.bindings import llama_cpp


class OutputRows(NamedTuple):
    """Rows of logits of one span."""

    targets: range
    samples: range
    """One row for the last token and for each draft token, or empty."""

    def behind(self, num_rows: int) -> OutputRows:
        return OutputRows(*(range(own.start + num_rows, own.stop + num_rows) for own in self))


class BatchLayout(NamedTuple):
    rows: list[OutputRows]
    num_outputs: int


class SlotSequences(NamedTuple):
    """llama.cpp's sequence ids of a slot: its number, and that of its guard.

    llama.cpp reuses a cell that a window has passed if exactly one sequence owns it. The guard is a second,
    silent owner that keeps the cell, for other sequences with the same prefix and for rollback. It costs only
    its number.
    """

    num_guarded: int = 0
    """Leading slots that have a guard."""
    first_guard: int = 0
    """Guard of slot 0."""

    def of(self, slot: int) -> tuple[int, ...]:
        return (slot, self.first_guard + slot) if slot < self.num_guarded else (slot,)

    def add_guards(self, slots: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]) -> None:
        """Add guards to `slots` (tokens, 2), and the number of sequences to `counts` (tokens,)."""
        if self.num_guarded:
            slots[:, 1] = slots[:, 0] + self.first_guard
            counts[:] = np.where(slots[:, 0] < self.num_guarded, 2, 1)


class _Batch:
    """`llama_batch` whose arrays belong to numpy."""

    def __init__(
        self,
        capacity: int,
        sequences: SlotSequences,
        **arrays: npt.NDArray[np.float32] | npt.NDArray[np.int32],
    ) -> None:
        self.capacity = capacity
        self._sequences = sequences
        self._slots = np.zeros((capacity, 2), np.int32)
        self._slot_counts = np.ones(capacity, np.int32)
        self._wants_logits = np.zeros(capacity, np.int8)
        row = self._slots.strides[0] * np.arange(capacity, dtype=np.uintp)
        self._slot_pointers = np.uintp(self._slots.ctypes.data) + row
        self.native = llama_cpp.llama_batch()
        kinds = dict(llama_cpp.llama_batch._fields_)
        for name, array in (
            ("n_seq_id", self._slot_counts),
            ("seq_id", self._slot_pointers),
            ("logits", self._wants_logits),
            *arrays.items(),
        ):
            setattr(self.native, name, array.ctypes.data_as(kinds[name]))


class TokenBatch(_Batch):
    def __init__(self, capacity: int, sequences: SlotSequences | None = None) -> None:
        """`sequences`: None if no slot is guarded."""
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        super().__init__(capacity, sequences or SlotSequences(), token=self._tokens, pos=self._positions)

    def fill(self, spans: Sequence[Span]) -> BatchLayout:
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
            # The last token's row may serve a target and the sample.
            num_samples = span.sample and len(span.targets) < len(span.tokens)
            num_outputs += len(span.targets) + num_samples + len(span.draft)
        count = len(tokens)
        assert 0 < count <= self.capacity, f"{count} tokens in a step of at most {self.capacity}"
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._slots[:count, 0] = slots
        self._sequences.add_guards(self._slots[:count], self._slot_counts[:count])
        self._wants_logits[:count] = wants
        self.native.n_tokens = count
        return BatchLayout(rows, num_outputs)


class PlacedRows(NamedTuple):
    slot: int
    values: npt.NDArray[np.float32]
    """(rows, width)"""
    places: npt.NDArray[np.int32]
    """(4, rows): positions in each dimension of the model."""
    is_whole: bool = False
    """True if the rows attend to all of themselves."""


class RowBatch(_Batch):
    """Embeddings, such as those of pictures, without outputs."""

    def __init__(self, capacity: int, width: int, sequences: SlotSequences) -> None:
        """`width`: numbers per row."""
        self._rows = np.zeros((capacity, width), np.float32)
        self._places = np.zeros(4 * capacity, np.int32)
        super().__init__(capacity, sequences, embd=self._rows, pos=self._places)

    def fill(self, parts: Sequence[PlacedRows]) -> None:
        count = sum(len(part.values) for part in parts)
        assert 0 < count <= self.capacity, f"{count} rows in a step of at most {self.capacity}"
        np.concatenate([part.values for part in parts], out=self._rows[:count])
        self._places[: 4 * count] = np.concatenate([part.places for part in parts], axis=1).ravel()
        self._slots[:count, 0] = np.repeat([part.slot for part in parts], [len(p.values) for p in parts])
        self._sequences.add_guards(self._slots[:count], self._slot_counts[:count])
        self.native.n_tokens = count


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
    """The sample uses the last token's row, which may also be a target's."""
    scored = len(span.targets)
    sampled = first + min(scored, len(span.tokens) - 1)
    end = sampled + 1 + len(span.draft) if span.sample else sampled
    return OutputRows(range(first, first + scored), range(sampled, end))
