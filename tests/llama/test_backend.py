"""What steps compute, with padding and without, and what they leave behind in the KV pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openai_cpu_server.contract.request import Constraint, Sampling
from openai_cpu_server.contract.step import Close, Open, Span, Step, TokenLogprob
from openai_cpu_server.llama.backend import LlamaBackend
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
from tests.llama.driver import GREEDY, TEXT, TOLERANCE, feed, generate, holding, loaded, opened, sampled
from tests.structured.making import gbnf_to_lark

PROMPT = TEXT[:60]


def scores(backend: LlamaBackend, prompt: tuple[int, ...], chunk: int) -> list[TokenLogprob]:
    """The log-probability of every prompt token but the first, computed in chunks."""
    found: list[TokenLogprob] = []
    with opened(backend, 0, prompt, top_logprobs=backend.info.vocab_size):
        for start in range(0, len(prompt), chunk):
            tokens, targets = prompt[start : start + chunk], prompt[start + 1 : start + 1 + chunk]
            result = backend.execute(Step(spans=(Span(0, start, tokens, False, targets),)))
            found += result.scores.get(0, ())
    return found


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_prompts_in_chunks_continue_as_prompts_in_one_piece(backend: LlamaBackend, chunk: int) -> None:
    assert generate(backend, PROMPT, 16, chunk=chunk) == generate(backend, PROMPT, 16)


def test_verbs_and_spans_of_one_step_go_together(backend: LlamaBackend) -> None:
    first = Step(verbs=(Open(1, GREEDY, PROMPT),), spans=(Span(1, 0, PROMPT, True),))
    again = Step(verbs=(Close(1), *first.verbs), spans=first.spans)
    results = [backend.execute(step) for step in (first, again, again, Step(verbs=(Close(1),)))]
    assert results[0].samples == results[1].samples == results[2].samples
    assert results[3].samples == {}


def test_closing_gives_all_cells_back(backend: LlamaBackend) -> None:
    prompt = (PROMPT * 34)[:2000]
    with opened(backend, 0, prompt):
        feed(backend, 0, 0, prompt, sample=False)
        for _ in range(3):
            with opened(backend, 1, prompt):
                feed(backend, 1, 0, prompt, sample=False)


def test_targets_score_as_teacher_forcing_does(backend: LlamaBackend) -> None:
    forced = []
    with opened(backend, 0, PROMPT, top_logprobs=backend.info.vocab_size):
        for position, token in enumerate(PROMPT[:-1]):
            logprob = sampled(backend, 0, position, [token]).logprob
            assert logprob is not None
            forced.append(dict(logprob.top)[PROMPT[position + 1]])
    for chunk in (60, 7):
        found = scores(backend, PROMPT, chunk)
        assert [score.token for score in found] == list(PROMPT[1:])
        assert [score.logprob for score in found] == pytest.approx(forced, abs=TOLERANCE)


def test_a_token_can_be_target_and_sample_at_once(backend: LlamaBackend) -> None:
    with opened(backend, 0, PROMPT, top_logprobs=1):
        result = backend.execute(Step(spans=(Span(0, 0, PROMPT, True, (*PROMPT[1:], 5)),)))
    sample = result.samples[0]
    assert len(result.scores[0]) == len(PROMPT)
    assert sample.logprob is not None
    assert result.scores[0][-1].top == sample.logprob.top == ((sample.token, sample.logprob.logprob),)


def test_log_probabilities_are_a_distribution_that_sampling_does_not_change(backend: LlamaBackend) -> None:
    tops = []
    odd = Sampling(seed=1, temperature=3.0, logit_bias={9: 50.0}, repeat_penalty=2.0)
    letters = Constraint(grammar=gbnf_to_lark("root ::= [a-z]{3,8}"))
    for sampling, constraint in ((GREEDY, None), (odd, None), (GREEDY, letters)):
        backend.execute(Step((Open(0, sampling, PROMPT, (), backend.info.vocab_size, constraint),)))
        sample = sampled(backend, 0, 0, PROMPT)
        backend.execute(Step((Close(0),)))
        assert sample.logprob is not None
        tops.append(sample.logprob.top)
        assert dict(tops[-1])[sample.token] == sample.logprob.logprob
    logprobs = [logprob for _, logprob in tops[0]]
    assert len({token for token, _ in tops[0]}) == backend.info.vocab_size
    assert np.exp(logprobs).sum() == pytest.approx(1)
    assert logprobs == sorted(logprobs, reverse=True)
    assert tops[0] == tops[1] == tops[2]


def test_none_asked_no_log_probabilities_and_zero_only_the_sampled(backend: LlamaBackend) -> None:
    with opened(backend, 0, PROMPT):
        assert sampled(backend, 0, 0, PROMPT).logprob is None
    with opened(backend, 0, PROMPT, top_logprobs=0):
        logprob = sampled(backend, 0, 0, PROMPT).logprob
    assert logprob is not None
    assert logprob.top == ()


def test_interrupting_when_nothing_runs_does_not_hit_the_next_step(backend: LlamaBackend, tiny: Path) -> None:
    expected = generate(backend, PROMPT, 2)
    with opened(backend, 0, PROMPT):
        for start, tokens, next_token in ((0, PROMPT, expected[0]), (len(PROMPT), expected[:1], expected[1])):
            backend.interrupt()
            assert sampled(backend, 0, start, tokens).token == next_token
    with loaded(tiny) as closed:
        pass
    closed.interrupt()


NEVER = {
    "no such slot": Step(verbs=(Open(8, GREEDY, PROMPT),)),
    "slot is open": Step(verbs=(Open(0, GREEDY, PROMPT), Open(0, GREEDY, PROMPT))),
    "empty": Step(spans=(Span(0, 0, (), False),)),
    "too many tokens": Step(spans=(Span(0, 0, (1,) * 2049, False),)),
    "too much padding": Step(spans=(Span(0, 0, (1,) * 2040, False),), padding=9),
    "only padding": Step(padding=1),
    "too many outputs": Step(spans=(Span(0, 0, (1,) * 100, False, (1,) * 100),)),
    "too many targets": Step(spans=(Span(0, 0, (1,), False, (1, 2)),)),
}


@pytest.mark.parametrize("step", NEVER.values(), ids=NEVER)
def test_steps_that_no_scheduler_may_ask_for(backend: LlamaBackend, step: Step) -> None:
    try:
        with pytest.raises(AssertionError):
            backend.execute(step)
    finally:
        for verb in step.verbs[:1]:
            if verb.slot < backend.info.max_seqs:
                backend.execute(Step(verbs=(Close(verb.slot),)))


def test_targets_and_steps_without_outputs_can_be_padded(backend: LlamaBackend) -> None:
    with opened(backend, 0, TEXT[:9]), opened(backend, 1, TEXT[:9]):
        silent = Span(0, 0, TEXT[:9], False)
        assert backend.execute(Step(spans=(silent,), padding=7)).samples == {}
        span = Span(1, 0, TEXT[:9], True, TEXT[1:9])
        result = backend.execute(Step(spans=(span,), padding=7))
    assert (list(result.samples), len(result.scores[1])) == ([1], 8)


def test_padding_gives_its_cells_back_and_is_left_out_where_the_pool_is_full(tiny: Path) -> None:
    """After each of these steps the pool of 256 is exactly full, or the next one would not fit."""
    with loaded(tiny, kv_tokens=256) as backend:
        with holding(backend, 0, TEXT[:200]):
            for position in range(200, 240):
                spans = (Span(0, position, TEXT[position : position + 1], False),)
                backend.execute(Step(spans=spans, padding=16))
            feed(backend, 0, 240, TEXT[:16])
        results = []
        for padding in (12, 0):
            with holding(backend, 0, TEXT), opened(backend, 1, TEXT):
                step = Step(spans=(Span(1, 0, TEXT[:4], True),), padding=padding)
                results.append(backend.execute(step))
    assert results[0] == results[1]
    assert results[0].padding == 0


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
