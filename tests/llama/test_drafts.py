"""Draft tokens, also those of a smaller model, change the number of steps and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openai_cpu_server.contract.messages import FinishReason, TokenEvent
from openai_cpu_server.contract.request import Constraint, DryPenalty, GenerationRequest, Sampling
from openai_cpu_server.contract.step import (
    Close,
    Drafted,
    Open,
    Sample,
    ShareCells,
    Span,
    Step,
)
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.sampler import Sampler, Scratch
from openai_cpu_server.llama.slots import OpenSlot
from tests.llama.driver import (
    ALWAYS,
    ENDLESS,
    GREEDY,
    OFF,
    TEXT,
    TOLERANCE,
    answers,
    execute_and_interrupt,
    generate,
    loaded,
    make_request,
    open_slot,
)
from tests.llama.odd_models import padded
from tests.structured.making import gbnf_to_lark

SIZE = 40
SCRATCH = Scratch(SIZE)
PROMPT = TEXT[:50]


def make_slot(seed: int, **parameters: object) -> OpenSlot:
    verb = Open(0, Sampling(seed=seed, **parameters), prompt=(5, 6))  # type: ignore[arg-type]
    return OpenSlot(
        verb, Sampler(verb, SCRATCH, vocab_size=SIZE, end_tokens=frozenset({2}), piece=b"%d".__mod__)
    )


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
def test_accepted_tokens_equal_those_of_single_steps(parameters: dict[str, Any]) -> None:
    """Random draws depend on seed and position only, because drafts come and go with the load."""
    logits = np.random.default_rng(3).normal(0, 1.5, (6, SIZE)).astype(np.float32)
    for seed in range(50):
        alone = make_slot(seed, **parameters)
        expected = [alone.sample(row).token for row in logits]
        alone.close()
        for right in range(6):
            draft = expected[:right] + [(token + 1) % SIZE for token in expected[right:5]]
            along = make_slot(seed, **parameters)
            drafted = along.sample_along(draft, logits)
            along.close()
            assert [sample.token for sample in drafted.samples] == expected[: right + 1]
            assert drafted.num_accepted == right


def stepwise(
    backend: LlamaBackend, verb: Open, plain: Sequence[Sample] = (), right: int = 0, wrong: int = 0
) -> list[Sample]:
    """Return up to 40 samples. Each draft has `right` tokens of the `plain` run, then `wrong` others."""
    backend.execute(Step(verbs=(verb,)))
    tokens, samples, start = list(verb.prompt), list[Sample](), 0
    truth = [token for sample in plain for token in (sample.token, *sample.forced)]
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
def test_scores_do_not_depend_on_drafts(backend: LlamaBackend, name: str, right: int, wrong: int) -> None:
    plain = stepwise(backend, REQUESTS[name])
    drafted = stepwise(backend, REQUESTS[name], plain, right, wrong)[: len(plain)]
    assert [(s.token, s.forced) for s in drafted] == [(s.token, s.forced) for s in plain]
    for one, other in zip(plain, drafted, strict=True):
        assert (one.logprob is None) == (other.logprob is None) == ("scored" not in name)
        if one.logprob is not None and other.logprob is not None:
            assert other.logprob.token == one.logprob.token == one.token
            assert len(other.logprob.top) == (3 if name == "scored" else 0)
            assert other.logprob.logprob == pytest.approx(one.logprob.logprob, abs=TOLERANCE)
            assert dict(other.logprob.top) == pytest.approx(dict(one.logprob.top), abs=TOLERANCE)


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
    return event.finish.drafted_tokens, event.finish.accepted_tokens


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0},
        {"temperature": 0, "dry": DryPenalty(multiplier=0.7)},
        {"xtc_probability": 0.5, "xtc_threshold": 0.01, "top_n_sigma": 3.0},
        {"temperature": 1.5, "top_p": 0.95, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 0, "min_tokens": 40, "stop_tokens": tuple(range(300))},
    ],
    ids=str,
)
def test_answers_with_drafts_and_resumed(backend: LlamaBackend, parameters: dict[str, Any]) -> None:
    sampling = Sampling(**{"seed": 5, **parameters})
    requests = [make_request(str(n), (PROMPT * 3)[n : n + 90], 60, sampling=sampling) for n in range(3)]
    plain, drafting = answers(backend, OFF, *requests), answers(backend, ALWAYS, *requests)
    assert {i: e.tokens for i, e in drafting.items()} == {i: e.tokens for i, e in plain.items()}
    assert all(drafts_of(event) == (0, 0) for event in plain.values())
    assert len(parameters) > 1 or sum(drafts_of(event)[1] for event in drafting.values()) > 0
    for request in requests:
        whole = plain[request.id].tokens
        assert answers(backend, OFF, request, output=whole[:25])[request.id].tokens == whole[25:]
        if sampling.stop_tokens:
            assert plain[request.id].finish.reason is FinishReason.STOP
            assert len(whole) >= 40
            assert not set(whole[:40]) & set(sampling.stop_tokens)


DEMO = Path(__file__).parents[2] / "model_assets" / "demo.gguf"
DRAFT = DEMO.with_name("demo-draft.gguf")
Prompts = list[tuple[int, ...]]
STORY = "One day the small dog ran to the old mill by the river. "


def load_with_draft(model: Path, draft: Path, **more: object) -> AbstractContextManager[LlamaBackend]:
    options = {"kv_tokens": 2048, "max_seqs": 4, "threads": 1, **more}
    return loaded(model, draft_model_path=str(draft), **options)


@pytest.fixture(scope="module")
def demo() -> Iterator[LlamaBackend]:
    with load_with_draft(DEMO, DRAFT) as demo:
        yield demo


@pytest.fixture(scope="module")
def sure() -> Iterator[LlamaBackend]:
    """The demo model is its own draft model, so that every greedy draft is right."""
    with load_with_draft(DEMO, DEMO) as demo:
        yield demo


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    texts = [STORY, STORY + "The cat was not there. " * 3, "My name is Anna. " + STORY]
    with Vocabulary.open(DEMO) as vocabulary:
        return [tuple(vocabulary.encode(text, add_special=True, parse_special=False)) for text in texts]


def scored_requests(
    prompts: Sequence[tuple[int, ...]], sampling: Sampling = GREEDY
) -> list[GenerationRequest]:
    return [make_request(str(n), one, 40, sampling=sampling, top_logprobs=2) for n, one in enumerate(prompts)]


def tokens_drafted(demo: LlamaBackend, slot: int, start: int, tokens: Sequence[int], count: int) -> list[int]:
    result = demo.execute(Step(spans=(Span(slot, start, tuple(tokens), True, num_to_draft=count),)))
    assert not result.interrupted
    return [result.samples[slot].token, *(sample.token for sample in result.further.get(slot, ()))]


@pytest.mark.parametrize("interrupts", [False, True])
def test_a_model_drafts_for_itself(sure: LlamaBackend, prompts: Prompts, interrupts: bool) -> None:
    for prompt in (*prompts, (prompts[0] * 30)[:250]):
        expected = generate(sure, prompt, 12)
        with open_slot(sure, 0, prompt):
            if interrupts:
                step = Step(spans=(Span(0, 0, prompt, True, num_to_draft=4),))
                assert execute_and_interrupt(sure, step).interrupted
            found = tokens_drafted(sure, 0, 0, prompt, 4)
            while len(found) < 9:
                found += tokens_drafted(sure, 0, len(prompt) + len(found) - 1, found[-1:], 4)
        assert found[:9] == expected[:9]
    drafted = answers(sure, ALWAYS, *scored_requests(prompts))
    assert sum(drafts_of(event)[1] for event in drafted.values()) > 20, "drafts save steps"


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=4, temperature=0.7)], ids=str)
def test_a_draft_model_changes_no_answer(demo: LlamaBackend, prompts: Prompts, sampling: Sampling) -> None:
    """The weights are quantised, so that either of two almost equally likely tokens may win."""
    requests = scored_requests(prompts, sampling)
    plain, with_drafts = answers(demo, OFF, *requests), answers(demo, ALWAYS, *requests)
    assert sum(drafts_of(event)[0] for event in with_drafts.values()) > 0
    for name, event in plain.items() if sampling is GREEDY else ():
        pairs = zip(event.logprobs, with_drafts[name].logprobs, strict=False)
        parting = next((one for one, other in pairs if one.token != other.token), None)
        assert parting is None or parting.top[0][1] - parting.top[1][1] < 0.2


def draft_step(
    demo: LlamaBackend, texts: dict[int, list[int]], computed: dict[int, int], num_to_read: int | None = 60
) -> dict[int, Drafted]:
    spans = tuple(
        Span(
            slot, computed[slot], tuple(text[computed[slot] :]), True, num_to_draft=2, num_to_read=num_to_read
        )
        for slot, text in texts.items()
    )
    result = demo.execute(Step(spans=spans))
    for slot, text in texts.items():
        computed[slot] = len(text) + result.drafted[slot].num_accepted
        text += [result.samples[slot].token, *(s.token for s in result.further.get(slot, ()))]
    return result.drafted


@pytest.mark.parametrize(("num_to_read", "expected"), [(90, [0, 90, 180]), (None, [0, 64, 128, 192])])
def test_a_draft_model_reads_in_steps(prompts: Prompts, num_to_read: int | None, expected: list[int]) -> None:
    prompt = (prompts[0] * 30)[:200]
    with (
        load_with_draft(DEMO, DEMO, prefill_tokens=64 if num_to_read is None else 256) as demo,
        open_slot(demo, 0, prompt),
    ):
        for start in range(0, 192, 64):
            demo.execute(Step(spans=(Span(0, start, prompt[start : start + 64], False),)))
        found, texts, computed = [0], {0: list(prompt)}, {0: 192}
        while found[-1] < len(prompt):
            (drafted,) = draft_step(demo, texts, computed, num_to_read).values()
            found.append(drafted.num_read)
            assert drafted.num_computed == 0 or drafted.num_read >= len(prompt)
    assert found[:-1] == expected


def test_a_draft_model_reads_only_prompts_that_fit_its_pool(prompts: Prompts) -> None:
    """Three long prompts share cells of the pool, but each takes half of the draft model's cells."""
    long, short = (prompts[0] * 30)[:256], prompts[0][:10]
    texts = {slot: list(short if slot == 3 else long) for slot in (2, 0, 1, 3)}
    with load_with_draft(DEMO, DEMO, kv_tokens=512) as demo:
        opens = tuple(Open(slot, GREEDY, tuple(text)) for slot, text in texts.items())
        demo.execute(Step(verbs=opens, spans=(Span(0, 0, long[:-1], False),)))
        shares = (ShareCells(0, 1, len(long) - 1), ShareCells(0, 2, len(long) - 1))
        demo.execute(Step(verbs=shares, spans=(Span(3, 0, short[:-1], False),)))
        computed = {slot: len(text) - 1 for slot, text in texts.items()}
        for _ in range(6):
            drafted = draft_step(demo, texts, computed)
        assert [slot for slot, one in drafted.items() if one.num_read] == [2, 3]
        assert drafted[2].num_read >= len(long)
        demo.execute(Step(verbs=(Close(2),)))
        del texts[2]
        for _ in range(6):
            drafted = draft_step(demo, texts, computed)
        assert [slot for slot, one in drafted.items() if one.num_read] == [0, 3]
        assert drafted[0].num_read >= len(long)


def test_a_sequence_that_outgrows_the_draft_pool_leaves_its_cells_to_the_others(prompts: Prompts) -> None:
    long = (prompts[0] * 30)[:230]
    texts = {0: list(long), 1: list(long)}
    with load_with_draft(DEMO, DEMO, kv_tokens=512) as demo:
        demo.execute(Step(verbs=tuple(Open(slot, ENDLESS, long) for slot in texts)))
        demo.execute(Step(spans=(Span(0, 0, long[:-1], False),)))
        demo.execute(Step(verbs=(ShareCells(0, 1, len(long) - 1),)))
        computed = {slot: len(text) - 1 for slot, text in texts.items()}
        num_read = []
        while len(texts[1]) < 310:
            drafted = draft_step(demo, texts, computed)
            num_read.append([one.num_read > 0 for one in drafted.values()])
    assert [True, True] in num_read
    assert num_read[-1] == [False, True]
    assert drafted[1].num_read >= 300


def test_tokens_that_only_the_draft_model_has_end_its_drafts(tiny: Path, tmp_path: Path) -> None:
    longer = padded(tiny, tmp_path / "longer.gguf", num_tokens=256)
    prompt = tuple(range(300, 340))
    with load_with_draft(tiny, longer) as demo, load_with_draft(longer, longer) as itself:
        assert generate(itself, prompt, 1)[0] >= demo.info.vocab_size
        expected = generate(demo, prompt, 1)
        with open_slot(demo, 0, prompt):
            assert tokens_drafted(demo, 0, 0, prompt, 4) == expected


def test_uncertain_draft_tokens_are_counted_and_not_computed(sure: LlamaBackend, prompts: Prompts) -> None:
    """After random tokens the draft model is uncertain. While it reads a prompt, it drafts nothing."""
    random_tokens = tuple(300 + (7919 * n) % 2000 for n in range(80))
    texts = {0: list(random_tokens), 1: list((prompts[0] * 30)[:80])}
    sure.execute(Step(verbs=tuple(Open(slot, ENDLESS, tuple(text)) for slot, text in texts.items())))
    sure.execute(Step(spans=tuple(Span(slot, 0, tuple(text[:-1]), False) for slot, text in texts.items())))
    computed = dict.fromkeys(texts, 79)
    steps = [draft_step(sure, texts, computed) for _ in range(8)]
    sure.execute(Step(verbs=(Close(0), Close(1))))
    assert [(one.num_computed, one.num_thought) for one in steps[0].values()] == [(0, 0)] * 2
    found = [(one.num_computed, one.num_thought) for step in steps[1:] for one in step.values()]
    assert set(found) == {(0, 1), (1, 2), (2, 2)}


def test_cost_of_a_draft_model_and_unfit_models(demo: LlamaBackend, tiny: Path, tmp_path: Path) -> None:
    assert 0 < demo.info.draft_cost < 1
    for model, draft, why in (
        (tiny, DRAFT, r"demo-draft\.gguf has another tokenizer"),
        (DEMO, tmp_path / "none.gguf", "does not exist"),
    ):
        with pytest.raises(StartupError, match=why), load_with_draft(model, draft):
            pass
