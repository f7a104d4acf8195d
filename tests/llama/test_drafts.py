"""Draft tokens change how many steps it takes, and nothing else: not what is chosen, nor how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from openai_cpu_server.contract.messages import EngineOptions, FinishReason, TokenEvent
from openai_cpu_server.contract.request import Constraint, DryPenalty, GenerationRequest, Sampling
from openai_cpu_server.contract.step import Close, Drafted, Open, Sample, Save, Span, Step, num_right
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.sampling.sampler import Sampler, Scratch
from openai_cpu_server.llama.slots import OpenSlot
from tests.fakes import SPECULATION
from tests.llama.driver import GREEDY, TEXT, TOLERANCE, answers, execute_and_press, generate, opened
from tests.structured.making import gbnf_to_lark

SIZE = 40
SCRATCH = Scratch(SIZE)
PROMPT = TEXT[:50]
OFF, ALWAYS = (EngineOptions(model_path="", **SPECULATION[kind]) for kind in ("off", "always"))


def rows(count: int) -> npt.NDArray[np.float32]:
    """Logits after the span's last token and after each of the draft's."""
    return np.random.default_rng(3).normal(0, 1.5, (count, SIZE)).astype(np.float32)


def slot(seed: int, **parameters: object) -> OpenSlot:
    opened_at = Open(0, Sampling(seed=seed, **parameters), prompt=(5, 6))  # type: ignore[arg-type]
    return OpenSlot(
        opened_at,
        Sampler(opened_at, SCRATCH, vocab_size=SIZE, end_tokens=frozenset({2}), piece=b"%d".__mod__),
    )


def chosen_along(
    draft: Sequence[int], logits: npt.NDArray[np.float32], seed: int, **p: object
) -> tuple[list[int], int]:
    one = slot(seed, **p)
    sampled = one.sample_along(draft, logits)
    one.close()
    return [sample.token for sample in sampled.samples], sampled.num_accepted


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 0.0, "repeat_penalty": 1.5, "repeat_last_n": 3},
        {"top_p": 0.8, "min_p": 0.05, "frequency_penalty": 0.5},
        {"temperature": 2.0, "top_k": 8, "logit_bias": {7: 1.5}, "presence_penalty": 2.0},
    ],
    ids=str,
)
def test_the_very_tokens_are_those_of_one_step_each(parameters: dict[str, Any]) -> None:
    """By seed and position: drafts come and go with the load, seeded answers and distributions stay."""
    logits = rows(6)
    for seed in range(50):
        alone = slot(seed, **parameters)
        expected = [alone.sample(row).token for row in logits]
        alone.close()
        for right in range(6):
            draft = expected[:right] + [(token + 1) % SIZE for token in expected[right:5]]
            tokens, accepted = chosen_along(draft, logits, seed, **parameters)
            assert (tokens, accepted) == (expected[: right + 1], right)


def stepwise(
    backend: LlamaBackend, verb: Open, known: Sequence[Sample] = (), right: int = 0, wrong: int = 0
) -> list[Sample]:
    """Up to 40 samples of a request. Its drafts are tokens `known` of a first run, and wrong ones."""
    backend.execute(Step(verbs=(verb,)))
    tokens, samples, start = list(verb.prompt), list[Sample](), 0
    truth = [token for sample in known for token in (sample.token, *sample.forced)]
    while len(samples) < 40 and not (samples and samples[-1].token in backend.info.end_tokens):
        at = len(tokens) - len(verb.prompt)
        draft = truth[at : at + right]
        draft += [(token + 3) % 900 + 5 for token in truth[at + right : at + right + wrong]]
        draft = [token for token in draft if token not in backend.info.end_tokens]
        span = Span(verb.slot, start, tuple(tokens[start:]), True, draft=tuple(draft))
        result = backend.execute(Step(spans=(span,)))
        assert not result.failures
        new = [result.samples[verb.slot], *result.further.get(verb.slot, ())]
        start = len(tokens) + result.drafted.get(verb.slot, Drafted()).num_accepted
        samples += new
        tokens += [token for sample in new for token in (sample.token, *sample.forced)]
    backend.execute(Step(verbs=(Close(verb.slot),)))
    return samples


LETTERS = Constraint(
    grammar=gbnf_to_lark('root ::= "<" [a-z]{5} "-" [a-z]{5} " and so on, for ever" [a-z]{3} ">"')
)
REQUESTS = {
    "greedy": Open(0, GREEDY, PROMPT),
    "penalised": Open(0, Sampling(seed=5, temperature=0.8, repeat_penalty=1.2), PROMPT),
    "scored": Open(0, GREEDY, PROMPT, top_logprobs=3),
    "grammar": Open(0, Sampling(seed=3), PROMPT, (), None, LETTERS),
    "grammar, scored": Open(0, Sampling(seed=3), PROMPT, (), 0, LETTERS),
}


@pytest.mark.parametrize(("right", "wrong"), [(4, 0), (0, 3), (2, 2), (12, 2)])
@pytest.mark.parametrize("name", REQUESTS)
def test_real_tokens_and_their_scores_do_not_depend_on_drafts(
    backend: LlamaBackend, name: str, right: int, wrong: int
) -> None:
    plain = stepwise(backend, REQUESTS[name])
    drafted = stepwise(backend, REQUESTS[name], plain, right, wrong)[: len(plain)]
    assert [(s.token, s.forced) for s in drafted] == [(s.token, s.forced) for s in plain]
    for one, other in zip(plain, drafted, strict=True):
        assert (one.logprob is None) == (other.logprob is None) == ("scored" not in name)
        if one.logprob is not None and other.logprob is not None:
            assert other.logprob.token == one.logprob.token == one.token
            assert other.logprob.logprob == pytest.approx(one.logprob.logprob, abs=TOLERANCE)
            assert dict(other.logprob.top) == pytest.approx(dict(one.logprob.top), abs=TOLERANCE)


def test_drafts_share_a_step_with_others(backend: LlamaBackend) -> None:
    expected = generate(backend, PROMPT, 6)
    other = generate(backend, PROMPT[:20], 1)
    with opened(backend, 0, PROMPT), opened(backend, 1, PROMPT[:20]):
        spans = (
            Span(0, 0, PROMPT, True, draft=(*expected[:4], 7)),
            Span(1, 0, PROMPT[:20], True, draft=(9, 9, 9)),
        )
        result = backend.execute(Step(spans=spans, padding=7))
        assert [result.samples[0].token, *(s.token for s in result.further[0])] == expected[:5]
        assert result.samples[1].token == other[0]
        assert result.drafted == {0: Drafted(5, 4), 1: Drafted(3, num_right((9,), other))}
        again = backend.execute(Step(spans=(Span(0, len(PROMPT) + 4, (expected[4],), True),)))
    assert again.samples[0].token == expected[5]


def test_rejected_cells_are_gone(backend: LlamaBackend) -> None:
    """A block behind what was accepted cannot be saved: nothing is there."""
    with opened(backend, 0, PROMPT):
        span = Span(0, 0, PROMPT, True, draft=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
        accepted = backend.execute(Step(spans=(span,))).drafted[0].num_accepted
        assert accepted < 14
        with pytest.raises(AssertionError):
            backend.execute(Step(verbs=(Save(0, 0, len(PROMPT) + accepted + 1, 900),)))


def test_an_interrupted_draft_leaves_no_trace(backend: LlamaBackend) -> None:
    head, tail = PROMPT[:20], (PROMPT * 40)[20:1000]
    with opened(backend, 0, head + tail):
        backend.execute(Step(spans=(Span(0, 0, head, False),)))
        step = Step(spans=(Span(0, 20, tail, True, draft=(1, 2, 3)),))
        assert execute_and_press(backend, step).interrupted
        result = backend.execute(step)
    with opened(backend, 0, head + tail):
        backend.execute(Step(spans=(Span(0, 0, head, False),)))
        assert backend.execute(step) == result


def test_a_draft_is_cut_where_the_grammar_forbids(backend: LlamaBackend, vocabulary: Vocabulary) -> None:
    fits = vocabulary.encode("abc", add_special=False, parse_special=False)
    draft = (*fits, *vocabulary.encode("7!", add_special=False, parse_special=False))
    constraint = Constraint(grammar=gbnf_to_lark("root ::= [a-z]{20,30}"))
    backend.execute(Step(verbs=(Open(0, GREEDY, PROMPT, constraint=constraint),)))
    result = backend.execute(Step(spans=(Span(0, 0, PROMPT, True, draft=draft),)))
    none = backend.execute(Step(verbs=(Close(0), Open(0, GREEDY, PROMPT, constraint=constraint))))
    assert none.drafted == {}
    nothing = backend.execute(Step(spans=(Span(0, 0, PROMPT, True, draft=draft[len(fits) :]),)))
    backend.execute(Step(verbs=(Close(0),)))
    assert result.drafted[0].num_computed == len(fits)
    assert (nothing.drafted, len(nothing.samples)) == ({0: Drafted()}, 1)


def drafts_of(event: TokenEvent) -> tuple[int, int]:
    assert event.finish is not None
    return event.finish.drafted_tokens, event.finish.accepted_tokens


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0},
        {"temperature": 0, "dry": DryPenalty(multiplier=0.7)},
        {"xtc_probability": 0.5, "xtc_threshold": 0.01, "top_n_sigma": 3.0},
        {"temperature": 0, "min_tokens": 40, "stop_tokens": tuple(range(300))},
    ],
    ids=str,
)
def test_whole_answers_are_the_same_with_drafts_and_when_taken_up_again(
    backend: LlamaBackend, parameters: dict[str, Any]
) -> None:
    """Greedy answers of random weights soon repeat themselves, which is quoting too."""
    sampling = Sampling(**{"seed": 5, **parameters})
    requests = [
        GenerationRequest(id=str(n), tokens=(PROMPT * 3)[n : n + 90], max_tokens=60, sampling=sampling)
        for n in range(3)
    ]
    plain, drafting = answers(backend, OFF, *requests), answers(backend, ALWAYS, *requests)
    assert {i: e.tokens for i, e in drafting.items()} == {i: e.tokens for i, e in plain.items()}
    assert all(drafts_of(event) == (0, 0) for event in plain.values())
    assert len(parameters) > 1 or sum(drafts_of(event)[1] for event in drafting.values()) > 0
    for request in requests:
        whole = plain[request.id].tokens
        again = answers(backend, OFF, request, told=whole[:25])[request.id].tokens
        assert again == whole[25:]
        if sampling.stop_tokens:
            finish = plain[request.id].finish
            assert finish is not None
            assert finish.reason is FinishReason.STOP
            assert len(whole) >= 40
            assert not set(whole[:40]) & set(sampling.stop_tokens)
