"""Heads that predict further tokens: drafts equal those after reading the whole text,
and change no answer."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import gguf
import pytest
from random_model.architectures import HEADS, VOCAB
from random_model.heads import arrange, spoil

from openai_cpu_server.contract.messages import CancelRequest, TokenEvent
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Close, Drafted, Open, ShareCells, Span, Step
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.draft_model import DraftRequest, ModelDraft
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.kv_size import HostMemory, KVType, planned_drafts
from tests.adapters import adapter, make_adapter
from tests.engine.driver import Engine
from tests.llama.driver import (
    ALWAYS,
    GREEDY,
    OFF,
    answers,
    execute,
    feed,
    generate,
    loaded,
    make_request,
    open_slot,
    repeated_interrupts,
    small_options,
)
from tests.llama.odd_models import header_only, rewritten
from tests.structured.making import gbnf_to_lark
from tests.tiny_model import make_model, tiny_model_path

TEXT = tuple(3 + (7 * i * i + 3 * i) % (VOCAB - 10) for i in range(400))
MODEL_OF = {"tiny-gemma4-assistant": "tiny-gemma4"}
ONE_OF_EACH = ("tiny-qwen35-head", "tiny-step35-heads", "tiny-gemma4-assistant")
FORWARD_ONLY = "tiny-qwen3next-head"
"""llama.cpp cannot take tokens back from its state."""
SLOTS = {"kv_tokens": 2048, "max_seqs": 4, "threads": 1, "kv_type": "f32"}


@pytest.fixture(
    scope="module",
    params=[
        name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.slow)
        for name in HEADS
        if name != FORWARD_ONLY
    ],
)
def backend(request: pytest.FixtureRequest) -> Iterator[LlamaBackend]:
    path, model = tiny_model_path(shape=request.param), MODEL_OF.get(request.param)
    more = {} if model is None else {"draft_model_path": str(path)}
    with loaded(path if model is None else tiny_model_path(shape=model), **SLOTS, **more) as backend:
        yield backend


def draft(backend: LlamaBackend, slot: int, text: Sequence[int], count: int = 3, new: int = 1) -> list[int]:
    request = DraftRequest(slot, text, count, None, len(text) - new, new)
    return list(backend._loaded.draft_model.draft([request]).get(slot, ModelDraft((), 0)).tokens)


def draft_after_reading_all(backend: LlamaBackend, text: Sequence[int], slot: int = 3) -> list[int]:
    with open_slot(backend, slot, text):
        feed(backend, slot, 0, text[:-1])
        return draft(backend, slot, text)


def add_token(backend: LlamaBackend, slot: int, text: list[int], wrong: int) -> None:
    """Compute one more token, with a draft of `wrong` tokens."""
    draft = tuple((token + 1) % 400 + 5 for token in range(wrong))[: backend.info.max_draft]
    span = Span(slot, len(text) - 1, (text[-1],), True, draft=draft)
    result = backend.execute(Step(spans=(span,)))
    text += [result.samples[slot].token, *(sample.token for sample in result.further.get(slot, ()))]


def test_a_draft_equals_that_after_reading_the_whole_text(backend: LlamaBackend) -> None:
    """Texts have prompts of several chunks, single tokens, wrong drafts and steps without a draft."""
    texts = {0: list(TEXT[:70]), 1: list(TEXT[90:129])}
    found, expected = [], []
    with open_slot(backend, 0, texts[0]), open_slot(backend, 1, texts[1]):
        feed(backend, 0, 0, TEXT[:30])
        spans = (Span(0, 30, TEXT[30:69], False), Span(1, 0, TEXT[90:128], False))
        backend.execute(Step(spans=spans))
        for number in range(24):
            for slot, text in texts.items():
                if number % 3 != slot:
                    found.append(draft(backend, slot, text))
                    expected.append(draft_after_reading_all(backend, text))
                add_token(backend, slot, text, number % 4)
    assert found == expected
    assert sum(map(len, found)) >= 10


def test_a_draft_behind_shared_cells_and_known_tokens(backend: LlamaBackend) -> None:
    text = list(TEXT[:60])
    with open_slot(backend, 0, text):
        feed(backend, 0, 0, text[:59])
        execute(backend, Open(1, GREEDY, tuple(text)), ShareCells(0, 1, 59))
        assert draft(backend, 1, text) == draft(backend, 0, text) == draft_after_reading_all(backend, text)
        longer = [*text, *TEXT[200:202]]
        assert len(draft(backend, 1, longer, new=3)) <= 3
        assert draft(backend, 1, [*longer, *TEXT[:9]], new=12) == []
        execute(backend, Close(1))


def write_predictable_model(path: Path, share: int) -> Path:
    make_model("--shape", "tiny-qwen35-head", "--quant", "f32", "--output", str(path))
    arrange(path)
    spoil(path, share)
    return path


REQUESTS = [make_request(str(n), range(330 + 40 * n, 300 + 40 * n, -1), 40) for n in range(3)]


def counts(backend: LlamaBackend) -> tuple[int, int]:
    """Return how many draft tokens are computed and accepted on texts without repetitions."""
    plain, drafting = answers(backend, OFF, *REQUESTS), answers(backend, ALWAYS, *REQUESTS)
    assert {i: e.tokens for i, e in drafting.items()} == {i: e.tokens for i, e in plain.items()}
    ends = [event.finish for event in drafting.values()]
    return sum(end.drafted_tokens for end in ends), sum(end.accepted_tokens for end in ends)


@pytest.mark.parametrize(("share", "least", "most"), [(100, 1.0, 1.0), (50, 0.2, 0.8), (0, 0.0, 0.0)])
def test_the_right_drafts_are_accepted(tmp_path: Path, share: int, least: float, most: float) -> None:
    """A hidden row of another position would give a wrong token."""
    with loaded(write_predictable_model(tmp_path / "model.gguf", share), **SLOTS) as backend:
        num_drafted, num_accepted = counts(backend)
    assert num_drafted > 20
    assert least <= num_accepted / num_drafted <= most


def parts(
    model: Path, folder: Path, changes: dict[str, object] | None = None, name: str = "mtp.gguf"
) -> tuple[Path, Path]:
    """Split a model into a file without its head and a file of the head alone."""
    names = [tensor.name for tensor in gguf.GGUFReader(model).tensors]
    head_tensors = [name for name in names if name.startswith("blk.4.")]
    trunk = [name for name in names if name.startswith("blk.") and name not in head_tensors]
    facts = {"general.architecture": "qwen35"}
    bare = {"qwen35.block_count": 4, "qwen35.nextn_predict_layers": 0, **facts}
    return (
        rewritten(model, folder / f"without-{name}", bare, dict.fromkeys(head_tensors)),
        rewritten(model, folder / name, {**facts, **(changes or {})}, dict.fromkeys(trunk)),
    )


def test_a_head_in_a_file_of_its_own(tmp_path: Path) -> None:
    model, head = parts(write_predictable_model(tmp_path / "model.gguf", 100), tmp_path)
    with loaded(model, draft_model_path=str(head), **SLOTS) as backend:
        num_drafted, num_accepted = counts(backend)
    assert num_drafted == num_accepted > 20


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files by the defect of their heads."""
    folder, model = tmp_path_factory.mktemp("odd"), tiny_model_path(shape="tiny-qwen35-head")
    other, same = tiny_model_path(shape="tiny-glm4moe-head"), {"general.architecture": "qwen35"}
    head_tensors = [one.name for one in gguf.GGUFReader(model).tensors if one.name.startswith("blk.4.")]
    return {
        "model": model,
        "two": rewritten(model, folder / "two.gguf", {**same, "qwen35.nextn_predict_layers": 2}),
        "cut": rewritten(model, folder / "cut.gguf", same, dict.fromkeys(head_tensors)),
        "bare": rewritten(model, folder / "bare.gguf", same, {"blk.4.attn_k.weight": None}),
        "wide": parts(model, folder, {"qwen35.embedding_length": 128})[1],
        "words": parts(model, folder, {"tokenizer.ggml.tokens": ["a", "b"]}, "words.gguf")[1],
        "stranger": parts(model, folder, {}, "stranger.gguf")[1],
        "glm": other,
        "eagle": header_only(folder / "eagle.gguf", "eagle3", {"eagle3.block_count": 1}),
        "flash": header_only(folder / "flash.gguf", "dflash", {"dflash.block_count": 1}),
    }


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cut", r"announces a head, but has no tensor blk\.4\.nextn\.eh_proj\.weight of it"),
        ("bare", r"tensor 'blk\.4\.attn_k\.weight' not found"),
    ],
)
def test_a_model_with_an_unusable_head_serves_without_it(
    odd: dict[str, Path], name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with loaded(odd[name], **SLOTS) as backend:
        assert (backend.info.draft_head, backend.info.draft_cost) == (None, None)
    (message,) = [record.getMessage() for record in caplog.records if "no head drafts" in record.getMessage()]
    assert re.search(why, message)
    with pytest.raises(StartupError, match=why), loaded(odd[name], head="own", **SLOTS):
        pass


def test_a_head_needs_a_model_that_takes_tokens_back(caplog: pytest.LogCaptureFixture) -> None:
    with loaded(tiny_model_path(shape=FORWARD_ONLY), **SLOTS) as backend:
        assert backend.info.draft_head is None
    assert "(qwen3next) cannot take back tokens" in caplog.text


@pytest.mark.parametrize(
    ("model", "head", "why"),
    [
        ("model", "wide", "it is for a model of another width"),
        ("model", "words", "it is for a model with another vocabulary"),
        ("glm", "stranger", "it is for qwen35 models, and the model is one of glm4moe"),
        ("model", "eagle", "drafts by EAGLE-3, which this server does not compute; it takes heads of multi"),
        ("model", "flash", "drafts by DFlash or DSpark, which this server does not compute"),
    ],
)
def test_a_named_file_that_cannot_draft_ends_the_start(
    odd: dict[str, Path], model: str, head: str, why: str
) -> None:
    with pytest.raises(StartupError, match=why):
        planned_drafts(
            GgufHeader(odd[model]), small_options(odd[model], head="none", draft_model_path=str(odd[head]))
        )
    found = planned_drafts(GgufHeader(odd[model]), small_options(odd[model], draft_model_path=str(odd[head])))
    assert found[0] is None
    assert re.search(why, found[1])


def test_two_heads_where_llama_cpp_computes_one(odd: dict[str, Path]) -> None:
    """llama.cpp would end the process."""
    found, why = planned_drafts(GgufHeader(odd["two"]), small_options(odd["two"]))
    assert (found, "has 2 heads, but llama.cpp computes one of qwen35 models" in why) == (None, True)


def test_a_lone_head_is_not_served(odd: dict[str, Path]) -> None:
    """llama.cpp crashes at the first token of such a hybrid."""
    for path in (odd["stranger"], tiny_model_path(shape="tiny-gemma4-assistant"), odd["eagle"]):
        with pytest.raises(StartupError, match=f"{path.name} is not a model: it drafts"), loaded(path):
            pass


def test_cells_of_a_head_are_counted(odd: dict[str, Path]) -> None:
    header = GgufHeader(odd["model"])
    drafts, _ = planned_drafts(header, small_options(odd["model"]))
    assert (drafts.weights, drafts.cell_bytes) == (0, 2 * (32 + 32))
    assert HostMemory.of(header, drafts, KVType.F16, 2**30).draft_cell_bytes == 128
    assert planned_drafts(header, small_options(odd["model"], head="none")) == (None, None)
    assert planned_drafts(header, small_options(odd["model"], speculation="off")) == (None, None)
    chain = GgufHeader(tiny_model_path(shape="tiny-step35-heads"))
    assert planned_drafts(chain, small_options(chain.path))[0].cell_bytes == 3 * 3 * 2 * (32 + 32)


def test_steps_that_a_head_does_not_read_leave_a_hole(backend: LlamaBackend) -> None:
    """Drafts continue after the hole, and answers stay the same."""
    text, expected = list(TEXT[:80]), generate(backend, TEXT[:80], 12)
    with open_slot(backend, 0, text):
        feed(backend, 0, 0, text[:40])
        backend.execute(Step(spans=(Span(0, 40, tuple(text[40:79]), False),), reads_along=False))
        assert draft(backend, 0, text) == []
        while len(text) < 92:
            span = Span(0, len(text) - 1, (text[-1],), True, num_to_draft=2)
            result = backend.execute(Step(spans=(span,), reads_along=len(text) > 84))
            assert (result.drafted[0].num_thought > 0) == (len(text) > 85)
            text += [result.samples[0].token, *(one.token for one in result.further.get(0, ()))]
    assert text[80:92] == expected


def test_a_step_reads_a_limited_number_of_tokens_for_drafts_after_idle_steps(backend: LlamaBackend) -> None:
    def step(*slots: int, num_to_draft: int = 0) -> Mapping[int, Drafted]:
        spans = [
            Span(slot, len(texts[slot]) - 1, (texts[slot][-1],), True, num_to_draft=num_to_draft)
            for slot in slots
        ]
        result = backend.execute(Step(spans=tuple(spans)))
        for slot in slots:
            further = result.further.get(slot, ())
            texts[slot] += [result.samples[slot].token, *(one.token for one in further)]
        return result.drafted

    texts = {0: list(TEXT[:101]), 1: list(TEXT[100:201])}
    with open_slot(backend, 0, texts[0]), open_slot(backend, 1, texts[1]):
        feed(backend, 0, 0, texts[0][:8])
        for position in range(8, 26):
            backend.execute(Step(spans=(Span(0, position, (texts[0][position],), True),)))
        feed(backend, 0, 26, texts[0][26:100])
        feed(backend, 1, 0, texts[1][:100])
        first, second = (step(0, 1, num_to_draft=2) for _ in range(2))
    assert {slot: tokens.num_thought > 0 for slot, tokens in first.items()} == {0: True, 1: False}
    assert all(tokens.num_thought > 0 for tokens in second.values())


LETTERS = Constraint(grammar=gbnf_to_lark('root ::= "<" [a-z]{9} "-" [a-z ]{30,60} ">"'))


def test_a_constraint_masks_the_drafts_of_a_head(backend: LlamaBackend) -> None:
    """No draft token is forbidden, and answers equal those of steps of one token."""
    prompt = tuple(TEXT[:50])
    requests = [
        make_request(str(n), prompt, 40, sampling=Sampling(seed=n, temperature=n), constraint=LETTERS)
        for n in range(3)
    ]
    plain, drafting = answers(backend, OFF, *requests), answers(backend, ALWAYS, *requests)
    assert {i: e.text for i, e in drafting.items()} == {i: e.text for i, e in plain.items()}
    backend.execute(Step(verbs=(Open(0, GREEDY, prompt, constraint=LETTERS),)))
    result = backend.execute(Step(spans=(Span(0, 0, prompt, True),)))
    text, num_tried = [*prompt, result.samples[0].token, *result.samples[0].forced], 0
    computed = len(prompt)
    for _ in range(8):
        span = Span(0, computed, tuple(text[computed:]), True, num_to_draft=3)
        result = backend.execute(Step(spans=(span,)))
        found = result.drafted[0]
        assert found.num_thought - found.num_computed <= 1, "masks keep forbidden tokens out of drafts"
        computed, num_tried = len(text) + found.num_accepted, num_tried + found.num_thought
        for sample in (result.samples[0], *result.further.get(0, ())):
            text += [sample.token, *sample.forced]
    execute(backend, Close(0))
    assert num_tried > 8


def random_requests(number: int) -> list[GenerationRequest]:
    """Make requests of all priorities, some with a common prefix."""
    draw = random.Random(number)
    requests = []
    for request_number in range(7):
        start = draw.choice((0, 0, 120))
        tokens = (
            *TEXT[start : start + draw.randint(40, 110)],
            *TEXT[200 + request_number : 204 + request_number],
        )
        priority = draw.choice(list(Priority))
        requests.append(
            make_request(str(request_number), tokens, draw.randint(10, 30), priority=priority, top_logprobs=2)
        )
    return requests


def restart(engine: Engine, requests: Sequence[GenerationRequest]) -> Engine:
    """Return a new engine that resumes the unfinished requests with their output so far."""
    new_engine = Engine(ALWAYS, engine.backend)
    new_engine.events = list(engine.events)
    finished = {event.id for event in engine.events if event.finish}
    unfinished = [one for one in requests if one.id not in finished]
    for one in unfinished:
        engine.core.handle(CancelRequest(one.id))
    engine.run()
    engine.core._scheduler.clear_cache()
    engine.run()
    for one in unfinished:
        new_engine.submit(one, output=new_engine.tokens(one.id))
    return new_engine


@pytest.mark.parametrize("number", range(2))
def test_answers_over_random_schedules(backend: LlamaBackend, number: int) -> None:
    """Requests arrive at any time, steps are interrupted, sequences preempted, and the engine crashes."""
    requests, draw = random_requests(number), random.Random(number)
    plain = answers(backend, OFF, *requests)
    engine, waiting = Engine(ALWAYS, backend), list(requests)
    while waiting or engine.core.has_work:
        if waiting and (draw.random() < 0.2 or not engine.core.has_work):
            engine.submit(waiting.pop())
        if draw.random() < 0.04:
            engine = restart(engine, [one for one in requests if one not in waiting])
        is_interrupted = draw.random() < 0.3
        context = backend._loaded.context
        with (
            repeated_interrupts(backend.interrupt, context, draw.randint(1, 60))
            if is_interrupted
            else nullcontext()
        ):
            engine.step()
    num_drafted = sum(event.finish.drafted_tokens for event in engine.events if event.finish)
    engine.core._scheduler.clear_cache()
    engine.run()
    assert num_drafted > 10
    for name, event in plain.items():
        assert_same_but_for_ties(event, engine.whole(name))


def assert_same_but_for_ties(event: TokenEvent, other: TokenEvent) -> None:
    pairs = zip(event.logprobs, other.logprobs, strict=True)
    parting = next((one for one, found in pairs if one.token != found.token), None)
    assert parting is None or parting.top[0][1] - parting.top[1][1] < 0.05


@pytest.mark.parametrize("is_own", [True, False])
def test_adapters_change_drafts_and_no_answer(tmp_path: Path, *, is_own: bool) -> None:
    """A head in a file of its own does not apply adapters."""
    model, head = tiny_model_path(shape="tiny-qwen35-head"), None
    if not is_own:
        model, head = parts(model, tmp_path)
    one = adapter(make_adapter(tmp_path / "a.gguf", model=model))
    more = {} if head is None else {"draft_model_path": str(head)}
    with loaded(model, **SLOTS, **more) as backend:
        requests = [
            make_request(f"{n}", TEXT[20 * n :][:60], 30, adapter=one.key if n % 2 else None, top_logprobs=2)
            for n in range(4)
        ]
        found = []
        for options in (OFF, ALWAYS):
            engine = Engine(options, backend)
            list(engine.core.load_adapter(engine.core.check_adapter(one)))
            engine.serve(*requests)
            found.append(engine)
            engine.core._scheduler.clear_cache()
            engine.run()
            backend.unload_adapter(one.key)
        plain, drafting = found
        for request in requests:
            assert_same_but_for_ties(plain.whole(request.id), drafting.whole(request.id))
            assert drafting.finish(request.id).drafted_tokens > 0
