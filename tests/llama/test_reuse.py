"""Shared, saved and restored cells are as good as computed ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from openai_cpu_server.contract.step import (
    Close,
    Drop,
    Open,
    Restore,
    Save,
    ShareCells,
    Span,
    Step,
    StepResult,
    Verb,
)
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.cells.context import DecodeFailed
from tests.llama.driver import (
    GREEDY,
    OTHER,
    TEXT,
    Logprobs,
    assert_close,
    do,
    execute_and_press,
    feed,
    holding,
    loaded,
    logprobs,
    opened,
)
from tests.llama.odd_models import gemma3

CHUNKS = (TEXT[:40], TEXT[40:64], TEXT[64:128])
"""Two blocks of 64."""

SELDOM = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("f32", "bf16")]


@pytest.fixture(scope="module", params=["f16", *SELDOM, "q8_0", "f16-plain"])
def pool(request: pytest.FixtureRequest, tiny: Path) -> Iterator[LlamaBackend]:
    """512 cells of each KV type; `plain`: values lie the other way round without flash attention."""
    kv_type, _, plain = request.param.partition("-")
    with loaded(tiny, kv_type=kv_type, flash_attention=not plain) as backend:
        yield backend


@pytest.fixture(scope="module")
def tight(tiny: Path) -> Iterator[LlamaBackend]:
    """256 cells."""
    with loaded(tiny, kv_tokens=256) as backend:
        yield backend


def nexts(backend: LlamaBackend, slot: int, start: int) -> tuple[Logprobs, Logprobs]:
    """What a decode of the text's next token gives, and then a chunk."""
    one = logprobs(backend, slot, start, TEXT[start : start + 1])
    return one, logprobs(backend, slot, start + 1, TEXT[start + 1 : start + 33])


def test_sharing_takes_no_cells(tight: LlamaBackend) -> None:
    with holding(tight, 0, TEXT[:200]), ExitStack() as slots:
        for slot in range(1, 6):
            slots.enter_context(holding(tight, slot))
            do(tight, ShareCells(0, slot, 200))
        feed(tight, 5, 200, OTHER[:56])


def test_closing_the_source_leaves_the_sharers_intact(tight: LlamaBackend) -> None:
    with holding(tight, 0, TEXT[:100]):
        expected = logprobs(tight, 0, 100, TEXT[100:110])
    with opened(tight, 0, TEXT[:100]):
        feed(tight, 0, 0, TEXT[:100], sample=False)
        tight.execute(Step(verbs=(Open(1, GREEDY, TEXT, (), tight.info.vocab_size), ShareCells(0, 1, 100))))
        feed(tight, 0, 100, OTHER[:100], sample=False)
    with holding(tight, 2, OTHER[:140]):
        found = logprobs(tight, 1, 100, TEXT[100:110])
    do(tight, Close(1))
    assert_close(found, expected)


def test_a_restored_prefix_gives_identical_logits(pool: LlamaBackend) -> None:
    with holding(pool, 0, *CHUNKS), holding(pool, 1), holding(pool, 2):
        do(pool, ShareCells(0, 1, 128), ShareCells(0, 2, 64))
        do(pool, Save(1, 0, 64, block=1), Save(0, 64, 128, block=2))
        expected = nexts(pool, 0, 128)
    with holding(pool, 2, OTHER[:130]):
        pass  # the freed cells hold something else now
    with holding(pool, 0):
        do(pool, Restore(1, 0, 0, 64), Restore(2, 0, 64, 128))
        assert nexts(pool, 0, 128) == expected
    with holding(pool, 5, OTHER[:50]), holding(pool, 2), holding(pool, 4, *CHUNKS[:2]), holding(pool, 1):
        do(pool, Restore(1, 2, 0, 64), Restore(2, 2, 64, 128), ShareCells(4, 1, 64), Restore(2, 1, 64, 128))
        for slot in (1, 2):
            for some, others in zip(nexts(pool, slot, 128), expected, strict=True):
                assert_close(some, others)
    do(pool, Drop(1), Drop(2))


@pytest.mark.parametrize(
    ("saved", "kept"),
    [
        *((64, 1), (64, 16), (64, 63), (17, 17), (41, 36)),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((64, 15), (64, 40), (1, 1), (40, 40), (41, 7))
        ),
    ],
)
def test_a_part_of_a_block_gives_identical_logits(pool: LlamaBackend, saved: int, kept: int) -> None:
    text, rest = TEXT[64 : 64 + kept], TEXT[64 + kept : 128]
    with holding(pool, 0, TEXT[:64], text):
        expected = nexts(pool, 0, 64 + kept)
    with holding(pool, 0, TEXT[:64], text, rest):
        do(pool, Save(0, 0, 64, block=1), Save(0, 64, 64 + saved, block=2))
    with holding(pool, 2):
        do(pool, Restore(1, 2, 0, 64), Restore(2, 2, 64, 64 + kept))
        assert nexts(pool, 2, 64 + kept) == expected
    do(pool, Drop(1), Drop(2))


@pytest.mark.parametrize(
    "kept", [33, 16, *(pytest.param(one, marks=pytest.mark.slow) for one in (64, 40, 1))]
)
def test_restoring_takes_its_tokens_in_whole_parts_of_sixteen(tight: LlamaBackend, kept: int) -> None:
    needed = -(-kept // 16) * 16
    with holding(tight, 0, TEXT[:kept]):
        expected = logprobs(tight, 0, kept, TEXT[kept : kept + 1])
    with holding(tight, 0, *(chunk for chunk in (TEXT[:kept], TEXT[kept:64]) if chunk)):
        do(tight, Save(0, 0, 64, block=1))
    with filled(tight, 256 - needed), holding(tight, 0):
        do(tight, Restore(1, 0, 0, kept))
        if kept < needed:
            assert_close(logprobs(tight, 0, kept, TEXT[kept : kept + 1]), expected)
    with filled(tight, 257 - needed), holding(tight, 0), pytest.raises(DecodeFailed, match="Restored 0 of"):
        do(tight, Restore(1, 0, 0, kept))
    do(tight, Drop(1))


@contextmanager
def filled(backend: LlamaBackend, cells: int) -> Iterator[None]:
    """Slot 1 holds so many of the 256 cells; those that are free lie singly between them."""
    free = 256 - cells
    with opened(backend, 1, OTHER):
        with opened(backend, 3, OTHER):
            for turn in range(free):
                start, end = cells * turn // free, cells * (turn + 1) // free
                spans = (Span(1, start, OTHER[:1] * (end - start), False), Span(3, turn, OTHER[:1], False))
                backend.execute(Step(spans=spans))
        yield


@pytest.mark.parametrize("window", [5, 8, 24])
def test_cells_are_saved_whole_however_narrow_the_window_is(tmp_path: Path, window: int) -> None:
    """llama.cpp leaves out what a window hides from the last cell that it saves together."""
    path = gemma3(tmp_path / "narrow.gguf", window=window)
    text = tuple(token % 500 for token in TEXT)
    with loaded(path, kv_type="f32", threads=1) as backend:
        with holding(backend, 0, text[:64], text[64:100], text[100:120]):
            do(backend, Save(0, 0, 64, block=1), Save(0, 64, 90, block=2))
        for end in (90, 70, 61):
            with holding(backend, 1):
                do(backend, Restore(1, 1, 0, min(64, end)))
                if end > 64:
                    do(backend, Restore(2, 1, 64, end))
                found = logprobs(backend, 1, end, text[end:100])
            with holding(backend, 2, text[:end]):
                assert_close(found, logprobs(backend, 2, end, text[end:100]))
        do(backend, Drop(1), Drop(2))


def test_what_an_interrupted_step_was_told_is_done(backend: LlamaBackend) -> None:
    verbs: tuple[Verb, ...] = (
        Save(0, 0, 64, block=1),
        Open(1, GREEDY, TEXT, (), backend.info.vocab_size),
        ShareCells(0, 1, 64),
        Open(2, GREEDY, TEXT, (), backend.info.vocab_size),
        Restore(1, 2, 0, 64),
    )
    with holding(backend, 0, *CHUNKS):
        long = Span(1, 64, OTHER * 9, True)
        result = execute_and_press(backend, Step(verbs=verbs, spans=(long,), padding=16))
        assert result == StepResult(interrupted=True, verbs_ms=result.verbs_ms)
        found = [logprobs(backend, slot, 64, TEXT[64:80]) for slot in (1, 2)]
    do(backend, Close(1), Close(2), Drop(1))
    with holding(backend, 0, *CHUNKS[:2]):
        expected = logprobs(backend, 0, 64, TEXT[64:80])
    for some in found:
        assert_close(some, expected)


NEVER = {
    "share too much": ShareCells(0, 1, 65),
    "share with a closed slot": ShareCells(0, 4, 10),
    "share with a used slot": ShareCells(0, 2, 10),
    "share of a closed slot": ShareCells(4, 1, 10),
    "save too much": Save(0, 60, 65, block=8),
    "save of a closed slot": Save(4, 0, 1, block=8),
    "save twice": Save(0, 0, 10, block=7),
    "restore what is not saved": Restore(8, 1, 0, 10),
    "restore into a closed slot": Restore(7, 4, 0, 10),
    "restore behind nothing": Restore(7, 1, 10, 20),
    "restore over what is there": Restore(7, 0, 0, 64),
    "restore at other positions": Restore(7, 0, 64, 80),
    "restore more than there is": Restore(7, 1, 0, 65),
    "drop what is not saved": Drop(8),
}


@pytest.mark.parametrize("verb", NEVER.values(), ids=NEVER)
def test_verbs_that_no_scheduler_may_ask_for(tight: LlamaBackend, verb: Verb) -> None:
    with holding(tight, 0, TEXT[:64]), holding(tight, 1), holding(tight, 2, OTHER[:5]):
        do(tight, Save(0, 0, 64, block=7))
        with pytest.raises(AssertionError):
            do(tight, verb)
    do(tight, Drop(7))
