"""Prompts that were computed beside the pool are as good there as those that were computed in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.step import Close, Drop, Open, Restore, Save, Share, Span, Step, StepResult
from openai_cpu_server.llama.backend import LlamaBackend
from tests.llama.driver import GREEDY, Logprobs, do, execute_and_press, generate, logprobs, opened

TEXT = tuple(1 + (7 * i * i + 3 * i) % 900 for i in range(120))
OTHER = tuple(1 + (5 * i * i + 11 * i) % 900 for i in range(120))


@pytest.fixture(scope="module", params=["f16", "f32", "q8_0", "f16-plain"])
def backend(request: pytest.FixtureRequest, tiny: Path) -> Iterator[LlamaBackend]:
    """1,024 cells, 256 beside them; `plain`: no flash attention, values lie the other way round."""
    kv_type, _, plain = request.param.partition("-")
    options = EngineOptions(
        model_path=str(tiny),
        kv_tokens=1024,
        staging_tokens=256,
        kv_type=kv_type,
        max_seqs=6,
        flash_attention=not plain,
    )
    backend = LlamaBackend.load(options, lambda fraction: None)
    yield backend
    backend.close()


def stage(backend: LlamaBackend, slot: int, start: int, tokens: tuple[int, ...]) -> StepResult:
    return backend.execute(Step(spans=(Span(slot, start, tokens, sample=True),), is_staged=True))


def after(backend: LlamaBackend, slot: int, *, is_staged: bool) -> list[Logprobs]:
    """What the model says behind TEXT, read in two steps, and behind a further token."""
    found = []
    with opened(backend, slot, TEXT, top_logprobs=backend.info.vocab_size):
        for start, end in ((0, 70), (70, 120)):
            step = Step(spans=(Span(slot, start, TEXT[start:end], sample=True),), is_staged=is_staged)
            sample = backend.execute(step).samples[slot]
            assert sample.logprob is not None
            found.append(sample.logprob.top)
        found.append(logprobs(backend, slot, 120, (5,)))
    return found


def test_the_model_says_the_same_to_the_last_bit(backend: LlamaBackend) -> None:
    assert backend.info.staging_tokens == 256
    assert after(backend, 0, is_staged=True) == after(backend, 0, is_staged=False)


def test_cells_are_moved_into_a_pool_full_of_holes(backend: LlamaBackend) -> None:
    alone = generate(backend, TEXT, 8)
    do(backend, *(Open(slot, GREEDY, ()) for slot in (1, 2, 3, 4, 5)))
    for piece in range(15):  # 16 tokens each in turn
        spans = tuple(Span(slot, 5 * piece, OTHER[:5], sample=False) for slot in (1, 2, 3, 4, 5))
        backend.execute(Step(spans=spans))
    do(backend, Close(1), Close(3), Close(5))
    with opened(backend, 0, TEXT):
        output = [stage(backend, 0, 0, TEXT).samples[0].token]
        while len(output) < 8:
            span = Span(0, 119 + len(output), (output[-1],), sample=True)
            output.append(backend.execute(Step(spans=(span,))).samples[0].token)
    do(backend, Close(2), Close(4))
    assert output == alone


@pytest.mark.parametrize("is_saved", [False, True])
def test_cells_can_be_shared_and_saved_from_there(backend: LlamaBackend, is_saved: bool) -> None:
    found = []
    for is_staged in (True, False):
        with opened(backend, 0, TEXT), opened(backend, 1, TEXT, top_logprobs=backend.info.vocab_size):
            backend.execute(Step(spans=(Span(0, 0, TEXT, sample=False),), is_staged=is_staged))
            if is_saved:
                do(backend, Save(0, 0, 64, 9), Restore(9, 1, 0, 64), Drop(9))
            else:
                do(backend, Share(0, 1, 64))
            found.append(logprobs(backend, 1, 64, TEXT[64:]))
    assert found[0] == found[1]


def test_an_interrupted_step_leaves_nothing_there(backend: LlamaBackend) -> None:
    alone = generate(backend, TEXT, 1)
    with opened(backend, 0, TEXT):
        step = Step(spans=(Span(0, 0, TEXT, sample=True),), is_staged=True)
        result = execute_and_press(backend, step)
        if result.interrupted:  # nearly always
            result = stage(backend, 0, 0, TEXT)
        assert [result.samples[0].token] == alone


def test_a_closed_slot_leaves_nothing_there(backend: LlamaBackend) -> None:
    alone = generate(backend, OTHER, 4)
    for _ in range(5):  # 600 tokens in all: more than there is room for
        with opened(backend, 0, TEXT):
            stage(backend, 0, 0, TEXT)
    assert generate(backend, OTHER, 4) == alone


def test_who_has_cells_in_the_pool_is_refused(backend: LlamaBackend) -> None:
    with opened(backend, 0, TEXT):
        backend.execute(Step(spans=(Span(0, 0, TEXT[:20], sample=False),)))
        with pytest.raises(AssertionError, match="cells in the pool"):
            stage(backend, 0, 20, TEXT[20:])
