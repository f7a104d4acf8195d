"""The KV pool itself: slots, trimming, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openai_cpu_server.contract.step import Span
from openai_cpu_server.llama.cells.batch import TokenBatch
from openai_cpu_server.llama.cells.context import (
    AbortSwitch,
    Context,
    ContextOptions,
    DecodeFailed,
    DecodeOutcome,
)
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.host import ComputeThreads
from openai_cpu_server.llama.model.kv_size import KVType
from openai_cpu_server.llama.model.model import Model

TOKENS = tuple(range(300, 320))


@pytest.fixture
def context(tiny: Path) -> Iterator[Context]:
    options = ContextOptions(
        kv_cells=256,
        kv_type=KVType.F16,
        num_slots=4,
        batch_tokens=64,
        outputs=8,
        threads=1,
        threads_batch=1,
        flash_attention=True,
    )
    abort = AbortSwitch()
    with (
        Model.open(GgufHeader(tiny), repack=False, on_progress=lambda fraction: None) as model,
        Context(model, options, abort, ComputeThreads(1)) as context,
    ):
        yield context


def compute(context: Context, *spans: Span) -> DecodeOutcome:
    batch = TokenBatch(context.batch_tokens)
    batch.fill(spans)
    return context.decode(batch)


def test_slots_hold_what_was_computed_until_trimmed_or_freed(context: Context) -> None:
    assert compute(context, Span(0, 0, TOKENS, True), Span(3, 0, TOKENS[:5], True)) is DecodeOutcome.DONE
    assert [context.num_positions(slot) for slot in range(4)] == [20, 0, 0, 5]
    context.trim(0, 12)
    assert context.num_positions(0) == 12
    context.free_slot(0)
    assert [context.num_positions(slot) for slot in range(4)] == [0, 0, 0, 5]
    context.clear()
    assert context.num_positions(3) == 0


def test_cells_are_found_wherever_they_are_free(context: Context) -> None:
    """Every cell is taken; then every fourth run of four is given back: 64 cells in 16 places."""
    for start in range(0, 256, 16):
        spans = [Span(slot, start // 4, (300,) * 4, False) for slot in range(4)]
        assert compute(context, *spans) is DecodeOutcome.DONE
    context.free_slot(2)
    assert compute(context, Span(2, 0, (300,) * 64, True)) is DecodeOutcome.DONE


def test_more_tokens_than_cells_and_a_gap_in_the_positions_are_named(context: Context) -> None:
    with pytest.raises(DecodeFailed, match="llama_decode returned -1"):
        compute(context, Span(0, 0, (300,), True), Span(0, 7, (301,), True))
    context.clear()
    for start in range(0, 256, 64):
        compute(context, Span(0, start, (300,) * 64, False))
    with pytest.raises(DecodeFailed, match="No free KV cells for 1 tokens"):
        compute(context, Span(1, 0, (300,), True))


def test_what_are_no_cells_is_refused_and_changes_nothing(context: Context) -> None:
    compute(context, Span(0, 0, TOKENS, False))
    data = np.empty(context.cells_bytes(0), np.uint8)
    context.read_cells(0, data)
    for wrong in (np.zeros(1000, np.uint8), data[:100], data[:-1], np.append(data, np.uint8(0))):
        with pytest.raises(DecodeFailed, match="Restored"):
            context.write_cells(3, wrong)
        context.free_slot(3)
    with pytest.raises(DecodeFailed, match="Saved 0 bytes"):
        context.read_cells(0, data[:-1])
    assert [context.num_positions(slot) for slot in range(4)] == [20, 0, 0, 0]
    for start in range(0, 236, 59):
        assert compute(context, Span(1, start, (300,) * 59, True)) is DecodeOutcome.DONE


def test_closing_twice_is_closing_once(context: Context) -> None:
    context.close()
    context.close()
    with pytest.raises(AssertionError, match="closed"):
        context.num_positions(0)
