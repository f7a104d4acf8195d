"""A small model drafts for a large one with the same tokens; what comes out is the large one's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.contract.step import Close, Drafted, Open, ShareCells, Span, Step
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama.driver import GREEDY, answers, execute_and_press, generate, loaded, opened
from tests.llama.odd_models import padded
from tests.llama.test_drafts import ALWAYS, OFF, drafts_of

DEMO = Path(__file__).parents[2] / "model_assets" / "demo.gguf"
DRAFT = DEMO.with_name("demo-draft.gguf")
Prompts = list[tuple[int, ...]]
ENDLESS = Sampling(seed=0, temperature=0, ignore_eos=True)
TEXT = "One day the small dog ran to the old mill by the river. "


def drafting(model: Path, draft: Path, **more: object) -> AbstractContextManager[LlamaBackend]:
    chosen = {"kv_tokens": 2048, "max_seqs": 4, "threads": 1, **more}
    return loaded(model, draft_model_path=str(draft), **chosen)


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    with drafting(DEMO, DRAFT) as backend:
        yield backend


@pytest.fixture(scope="module")
def sure() -> Iterator[LlamaBackend]:
    """The model drafts for itself: it is right as often as it is greedy."""
    with drafting(DEMO, DEMO) as backend:
        yield backend


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    texts = [TEXT, TEXT + "The cat was not there. " * 3, "My name is Anna. " + TEXT]
    with Vocabulary.open(DEMO) as words:
        return [tuple(words.encode(text, add_special=True, parse_special=False)) for text in texts]


def asks(prompts: Sequence[tuple[int, ...]], sampling: Sampling = GREEDY) -> list[GenerationRequest]:
    return [
        GenerationRequest(id=str(n), tokens=tokens, max_tokens=40, sampling=sampling, top_logprobs=2)
        for n, tokens in enumerate(prompts)
    ]


def drafted(backend: LlamaBackend, slot: int, start: int, tokens: Sequence[int], count: int) -> list[int]:
    """What a step with so many draft tokens brings."""
    result = backend.execute(Step(spans=(Span(slot, start, tuple(tokens), True, num_to_draft=count),)))
    assert not result.interrupted
    return [result.samples[slot].token, *(sample.token for sample in result.further.get(slot, ()))]


@pytest.mark.parametrize("interrupts", [False, True])
def test_what_it_drafts_for_itself_is_right_also_behind_an_interrupted_step(
    sure: LlamaBackend, prompts: Prompts, interrupts: bool
) -> None:
    for prompt in (*prompts, (prompts[0] * 30)[:250]):
        expected = generate(sure, prompt, 12)
        with opened(sure, 0, prompt):
            if interrupts:
                step = Step(spans=(Span(0, 0, prompt, True, num_to_draft=4),))
                assert execute_and_press(sure, step).interrupted
            found = drafted(sure, 0, 0, prompt, 4)
            while len(found) < 9:
                found += drafted(sure, 0, len(prompt) + len(found) - 1, found[-1:], 4)
        assert found[:9] == expected[:9]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=4, temperature=0.7)], ids=str)
def test_answers_are_the_models_own(backend: LlamaBackend, prompts: Prompts, sampling: Sampling) -> None:
    """Its weights are quantised: where two tokens are all but equally likely, either may come."""
    requests = asks(prompts, sampling)
    plain, drafted = answers(backend, OFF, *requests), answers(backend, ALWAYS, *requests)
    assert sum(drafts_of(event)[0] for event in drafted.values()) > 0
    assert sampling is not GREEDY or parts_only_where_two_are_as_likely(plain, drafted)


def parts_only_where_two_are_as_likely(some: dict[str, TokenEvent], others: dict[str, TokenEvent]) -> bool:
    for name, event in some.items():
        pairs = zip(event.logprobs, others[name].logprobs, strict=False)
        parting = next((one for one, other in pairs if one.token != other.token), None)
        if parting is not None and parting.top[0][1] - parting.top[1][1] >= 0.2:
            return False
    return True


def test_drafts_for_itself_save_steps(sure: LlamaBackend, prompts: Prompts) -> None:
    drafted = answers(sure, ALWAYS, *asks(prompts))
    assert sum(drafts_of(event)[1] for event in drafted.values()) > 20


def draft_along(
    backend: LlamaBackend, texts: dict[int, list[int]], computed: dict[int, int], most: int | None = 60
) -> dict[int, Drafted]:
    """A step in which all of the slots draft, in this order; takes over what it brings."""
    spans = tuple(
        Span(slot, computed[slot], tuple(text[computed[slot] :]), True, num_to_draft=2, num_to_read=most)
        for slot, text in texts.items()
    )
    result = backend.execute(Step(spans=spans))
    for slot, text in texts.items():
        computed[slot] = len(text) + result.drafted[slot].num_accepted
        text += [result.samples[slot].token, *(s.token for s in result.further.get(slot, ()))]
    return result.drafted


@pytest.mark.parametrize(("num_to_read", "known"), [(90, [0, 90, 180]), (None, [0, 64, 128, 192])])
def test_it_reads_a_long_prompt_in_some_steps(
    prompts: Prompts, num_to_read: int | None, known: list[int]
) -> None:
    """No more than it may, or than a step holds."""
    prompt = (prompts[0] * 30)[:200]
    with (
        drafting(DEMO, DEMO, prefill_tokens=64 if num_to_read is None else 256) as backend,
        opened(backend, 0, prompt),
    ):
        for start in range(0, 192, 64):
            backend.execute(Step(spans=(Span(0, start, prompt[start : start + 64], False),)))
        found, texts, computed = [0], {0: list(prompt)}, {0: 192}
        while found[-1] < len(prompt):
            (drafted,) = draft_along(backend, texts, computed, num_to_read).values()
            found.append(drafted.num_known)
            assert drafted.num_computed == 0 or drafted.num_known >= len(prompt)
    assert found[:-1] == known


def test_it_reads_only_what_it_has_room_for_to_the_end(prompts: Prompts) -> None:
    """Three long prompts share the pool's cells; of the draft model's one of them takes half."""
    long, short = (prompts[0] * 30)[:256], prompts[0][:10]
    texts = {slot: list(short if slot == 3 else long) for slot in (2, 0, 1, 3)}
    with drafting(DEMO, DEMO, kv_tokens=512) as backend:
        opens = tuple(Open(slot, GREEDY, tuple(text)) for slot, text in texts.items())
        backend.execute(Step(verbs=opens, spans=(Span(0, 0, long[:-1], False),)))
        shares = (ShareCells(0, 1, len(long) - 1), ShareCells(0, 2, len(long) - 1))
        backend.execute(Step(verbs=shares, spans=(Span(3, 0, short[:-1], False),)))
        computed = {slot: len(text) - 1 for slot, text in texts.items()}
        for _ in range(6):
            drafted = draft_along(backend, texts, computed)
        assert [slot for slot, one in drafted.items() if one.num_known] == [2, 3]
        assert drafted[2].num_known >= len(long)
        backend.execute(Step(verbs=(Close(2),)))
        del texts[2]
        for _ in range(6):
            drafted = draft_along(backend, texts, computed)
        assert [slot for slot, one in drafted.items() if one.num_known] == [0, 3]
        assert drafted[0].num_known >= len(long)


def test_who_finds_no_room_any_more_leaves_its_own_to_the_others(prompts: Prompts) -> None:
    long = (prompts[0] * 30)[:230]
    texts = {0: list(long), 1: list(long)}
    with drafting(DEMO, DEMO, kv_tokens=512) as backend:
        backend.execute(Step(verbs=tuple(Open(slot, ENDLESS, long) for slot in texts)))
        backend.execute(Step(spans=(Span(0, 0, long[:-1], False),)))
        backend.execute(Step(verbs=(ShareCells(0, 1, len(long) - 1),)))
        computed = {slot: len(text) - 1 for slot, text in texts.items()}
        num_known = []
        while len(texts[1]) < 310:
            drafted = draft_along(backend, texts, computed)
            num_known.append([one.num_known > 0 for one in drafted.values()])
    assert [True, True] in num_known
    assert num_known[-1] == [False, True]
    assert drafted[1].num_known >= 300


def test_a_slot_is_free_again_when_it_is_closed(sure: LlamaBackend, prompts: Prompts) -> None:
    for prompt in prompts * 3:
        sure.execute(Step(verbs=(Open(1, GREEDY, prompt),)))
        span = Span(1, 0, prompt, True, num_to_draft=3)
        assert sure.execute(Step(spans=(span,))).drafted[1].num_known >= len(prompt)
        sure.execute(Step(verbs=(Close(1),)))


def test_tokens_that_only_the_draft_model_has_end_its_drafts(tiny: Path, tmp_path: Path) -> None:
    longer = padded(tiny, tmp_path / "longer.gguf", num_tokens=256)
    prompt = tuple(range(300, 340))
    with drafting(tiny, longer) as backend, drafting(longer, longer) as itself:
        assert generate(itself, prompt, 1)[0] >= backend.info.vocab_size
        expected = generate(backend, prompt, 1)
        with opened(backend, 0, prompt):
            assert drafted(backend, 0, 0, prompt, 4) == expected


def test_what_it_is_not_sure_of_counts_as_thought_of(sure: LlamaBackend, prompts: Prompts) -> None:
    """Behind words in no order nobody is sure of anything; there is nothing to think of while it reads."""
    random = tuple(300 + (7919 * n) % 2000 for n in range(80))
    texts = {0: list(random), 1: list((prompts[0] * 30)[:80])}
    sure.execute(Step(verbs=tuple(Open(slot, ENDLESS, tuple(text)) for slot, text in texts.items())))
    sure.execute(Step(spans=tuple(Span(slot, 0, tuple(text[:-1]), False) for slot, text in texts.items())))
    computed = dict.fromkeys(texts, 79)
    steps = [draft_along(sure, texts, computed) for _ in range(8)]
    sure.execute(Step(verbs=(Close(0), Close(1))))
    assert [(one.num_computed, one.num_thought) for one in steps[0].values()] == [(0, 0)] * 2
    found = [(one.num_computed, one.num_thought) for step in steps[1:] for one in step.values()]
    assert set(found) == {(0, 1), (1, 2), (2, 2)}


def test_its_price_is_told_and_what_cannot_draft_is_refused(
    backend: LlamaBackend, tiny: Path, tmp_path: Path
) -> None:
    assert backend.info.draft_cost is not None
    assert 0 < backend.info.draft_cost < 1
    for model, draft, why in (
        (tiny, DRAFT, r"demo-draft\.gguf has another tokenizer"),
        (DEMO, tmp_path / "none.gguf", "There is no model file"),
    ):
        with pytest.raises(StartupError, match=why), drafting(model, draft):
            pass
