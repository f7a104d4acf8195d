"""What steps compute, and what they leave behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openai_cpu_server.contract.request import Constraint, Sampling
from openai_cpu_server.contract.step import Close, Open, Span, Step, TokenLogprob
from openai_cpu_server.llama.backend import LlamaBackend
from tests.llama.driver import GREEDY, TEXT, TOLERANCE, feed, generate, loaded, opened, sampled
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
    """The pool holds two such prompts, not three."""
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


SEEDED = Sampling(
    seed=99, temperature=1.5, top_p=0.95, repeat_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3
)


@pytest.mark.parametrize("produced", [1, 5, 11])
def test_a_resumed_request_gets_the_tokens_that_it_would_have_got(
    backend: LlamaBackend, produced: int
) -> None:
    whole = generate(backend, PROMPT, 16, SEEDED)
    resumed = whole[:produced]
    with opened(backend, 5, PROMPT, SEEDED, output=resumed):
        feed(backend, 5, 0, PROMPT, sample=False)
        for index, token in enumerate(whole[: produced - 1]):
            feed(backend, 5, len(PROMPT) + index, [token], sample=False)
        while len(resumed) < len(whole):
            resumed.append(sampled(backend, 5, len(PROMPT) + len(resumed) - 1, resumed[-1:]).token)
    assert resumed == whole


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
