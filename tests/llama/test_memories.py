"""Sequences in every kind of memory: shared, saved, interrupted, preempted and drafted ones stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from random_model.architectures import ARCHITECTURES, HEADS, VOCAB, Architecture

from openai_cpu_server.contract.messages import EngineOptions, Experiment
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import (
    Close,
    Drop,
    Open,
    Restore,
    RestoreState,
    Save,
    SaveState,
    ShareCells,
    Span,
    Step,
    StepResult,
    Verb,
)
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.cells.context import DecodeFailed
from tests.engine.driver import Engine
from tests.llama.driver import (
    GREEDY,
    Logprobs,
    assert_close,
    execute,
    execute_and_interrupt,
    feed,
    generate,
    loaded,
    logprobs,
    make_request,
    open_slot,
    prefill,
    small_options,
)
from tests.llama.odd_models import gemma3
from tests.tiny_model import tiny_model_path

TEXT = tuple(3 + (7 * i * i + 3 * i) % (VOCAB - 10) for i in range(400))
OTHER = tuple(3 + (5 * i * i + 11 * i) % (VOCAB - 10) for i in range(400))
TIE = 0.05  # largest difference between equal logprobs, because steps of other sizes round differently


@dataclass
class ServedModel:
    backend: LlamaBackend
    options: EngineOptions


ONE_OF_EACH = ("tiny-deepseek2", "tiny-gemma4", "tiny-mamba", "tiny-qwen35-head", "tiny-lfm2-window")
"""All kinds of memory, latent and shared cells, positions of three numbers, and heads that draft."""
ASSISTANTS = {"tiny-gemma4": "tiny-gemma4-assistant"}
MODELS = {
    name: model for name, model in {**ARCHITECTURES, **HEADS}.items() if name not in ASSISTANTS.values()
}


@pytest.fixture(
    scope="module",
    params=[name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return MODELS[request.param]


@pytest.fixture(scope="module")
def served(architecture: Architecture) -> Iterator[ServedModel]:
    path = tiny_model_path(shape=architecture.name)
    more = {"kv_tokens": 2048, "max_seqs": 6, "prefill_tokens": 256, "kv_type": "f32", "threads": 1}
    if architecture.name in ASSISTANTS:
        more["draft_model_path"] = str(tiny_model_path(shape=ASSISTANTS[architecture.name]))
    with loaded(path, **more) as backend:
        yield ServedModel(backend, small_options(path, cache_bytes=2**26, **more))


def assert_computed(backend: LlamaBackend, text: Sequence[int], found: Logprobs) -> None:
    with prefill(backend, 3, text[:-1]):
        assert_close(found, logprobs(backend, 3, len(text) - 1, text[-1:]), TIE)


def test_a_prefix_is_shared_saved_and_restored(served: ServedModel) -> None:
    backend = served.backend
    text = TEXT[:150] + OTHER[:20]
    with prefill(backend, 0, text[:150], text[150:169]):
        expected = logprobs(backend, 0, 169, text[169:])
    with prefill(backend, 0, OTHER[:30]), prefill(backend, 4, TEXT[:64], TEXT[64:150]):
        execute(backend, *save_verbs(backend, 4, 150))
        feed(backend, 4, 150, TEXT[150:250])
        with prefill(backend, 1, OTHER[:128], OTHER[128:256]):
            with prefill(backend, 2):
                execute(backend, ShareCells(4, 2, 150), *restore_state_verbs(backend, 2, 150))
                feed(backend, 2, 150, text[150:169])
                assert_close(logprobs(backend, 2, 169, text[169:]), expected, TIE)
            with prefill(backend, 3):
                execute(backend, Restore(1, 3, 0, 64), Restore(2, 3, 64, 128), Restore(3, 3, 128, 150))
                execute(backend, *restore_state_verbs(backend, 3, 150))
                feed(backend, 3, 150, text[150:169])
                assert_close(logprobs(backend, 3, 169, text[169:]), expected, TIE)
    numbers = (1, 2, 3, 4) if backend.info.state_bytes else (1, 2, 3)
    execute(backend, *map(Drop, numbers))


def save_verbs(backend: LlamaBackend, slot: int, end: int) -> list[Save | SaveState]:
    boundaries = [*range(0, end, 64), end]
    cells = [Save(slot, start, stop, i) for i, (start, stop) in enumerate(pairwise(boundaries), 1)]
    return [*cells, SaveState(slot, end, 4)] if backend.info.state_bytes else cells


def restore_state_verbs(backend: LlamaBackend, slot: int, end: int) -> tuple[RestoreState, ...]:
    return (RestoreState(4, slot, end),) if backend.info.state_bytes else ()


def test_an_interrupted_step_leaves_no_trace(served: ServedModel) -> None:
    backend = served.backend
    texts = TEXT[:256], OTHER[:41], OTHER[:80]
    with prefill(backend, 0, TEXT[:100]), prefill(backend, 1, OTHER[:40]), prefill(backend, 2):
        starts = (100, 40, 0)
        draft = () if backend.info.max_draft == 0 else (7,)
        spans = (Span(n, start, texts[n][start:], True, draft=draft) for n, start in enumerate(starts))
        step = Step(spans=tuple(spans))
        for at_node in (1, 5, 20, 60):
            assert execute_and_interrupt(backend, step, at_node=at_node).interrupted
        result = execute_and_interrupt(backend, step, is_allowed=False)
    assert not result.interrupted
    for slot, text in enumerate(texts):
        assert_computed(backend, text, result.samples[slot].logprob.top)


def test_sequences_outside_an_interrupted_step_keep_their_state(served: ServedModel) -> None:
    """llama.cpp moves the states of a step together where closed sequences have left gaps between them."""
    backend = served.backend
    texts = [TEXT[i : i + 60] for i in range(0, 180, 30)]
    with ExitStack() as slots:
        closed_slots = ExitStack()
        for slot in range(6):
            (closed_slots if slot in (1, 3) else slots).enter_context(prefill(backend, slot, texts[slot]))
        closed_slots.close()
        more = {0: OTHER[:1], 2: OTHER[:128], 5: OTHER[:60]}
        step = Step(spans=tuple(Span(slot, 60, tokens, True) for slot, tokens in more.items()))
        for at_node in (1, 30):
            assert execute_and_interrupt(backend, step, at_node=at_node).interrupted
        found = {4: logprobs(backend, 4, 60, OTHER[:20])}
        result = backend.execute(step)
    for slot, sample in result.samples.items():
        found[slot] = sample.logprob.top
    for slot, tokens in {**more, 4: OTHER[:20]}.items():
        with prefill(backend, 1, texts[slot]):
            assert_close(found[slot], logprobs(backend, 1, 60, tokens), TIE)


def test_drafts_change_no_answer(served: ServedModel) -> None:
    quoting = [make_request(f"q{i}", (TEXT[i : i + 40] * 4)[: 150 + i], length=40) for i in range(3)]
    with Run(served, experiment=Experiment(always_drafts=True)) as run:
        run.serve(*quoting)
    for one in quoting:
        assert_same(served.backend, one, run.tokens(one.id))
    assert (run.num_drafted > 0) == (served.backend.info.max_draft != 0)


def test_wrong_drafts_leave_no_trace_in_steps_of_several_sequences(served: ServedModel) -> None:
    """llama.cpp moves a state when others compute together, but not the copies for a rollback."""
    backend = served.backend
    most = 2 if backend.info.max_draft is None else backend.info.max_draft
    wrong = TEXT[7], OTHER[9]
    lengths = ["010", "100", "000", "001", "010", "101", "120", "211", "220"]
    texts = [list(TEXT[:60]), list(OTHER[:96]), list(OTHER[100:230])]
    found = []
    with ExitStack() as stack:
        for slot in (1, 0, 2):  # so that the first one's state lies between those of the others
            stack.enter_context(prefill(backend, slot, texts[slot][:-1]))
        for drafts in lengths * 2:
            spans = [
                Span(slot, len(text) - 1, (text[-1],), True, draft=wrong[: min(int(length), most)])
                for slot, (text, length) in enumerate(zip(texts, drafts, strict=True))
            ]
            result = backend.execute(Step(spans=tuple(spans)))
            for slot, text in enumerate(texts):
                for sample in (result.samples[slot], *result.further.get(slot, ())):
                    found.append((tuple(text), sample.logprob.top))
                    text.append(sample.token)
    for text, top in found:
        assert_computed(backend, text, top)


class Run(Engine):
    """An engine's core that clears its cache in the backend at the end."""

    def __init__(self, served: ServedModel, **more: object) -> None:
        super().__init__(msgspec.structs.replace(served.options, **more), served.backend)

    def cached(self, name: str) -> int:
        return self.finish(name).cached_tokens

    @property
    def num_drafted(self) -> int:
        return sum(event.finish.drafted_tokens for event in self.events if event.finish)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.core._scheduler.clear_cache()
            self.run()


def test_requests_with_a_common_prefix_compute_it_once(served: ServedModel) -> None:
    backend = served.backend
    requests = [make_request(f"r{i}", TEXT[:300] + OTHER[20 * i : 20 * i + 30]) for i in range(5)]
    with Run(served) as run:
        run.serve(*requests)
        assert sorted(run.cached(one.id) for one in requests) == [0, 300, 300, 300, 300]
        for one in requests:
            assert_same(backend, one, run.tokens(one.id))
        # A later request, and the next turn of an earlier one, take the prefix from the cache.
        late = make_request("late", TEXT[:300] + OTHER[200:240])
        turn = make_request("turn", (*requests[2].tokens, *run.tokens("r2"), *OTHER[300:320]))
        run.serve(late, turn)
        assert run.cached("late") == 300
        assert run.cached("turn") >= 300
        assert_same(backend, late, run.tokens("late"))
        assert_same(backend, turn, run.tokens("turn"))


def test_a_conversation_continues_from_its_cache(served: ServedModel) -> None:
    with Run(served) as run:
        tokens = TEXT[:100]
        for number in range(4):
            turn = make_request(f"t{number}", tokens, length=80)
            run.serve(turn)
            tokens = (*tokens, *run.tokens(turn.id), *OTHER[10 * number : 10 * number + 5])
        assert [run.cached(f"t{i}") for i in range(4)] == [0, 179, 264, 349]
        assert_same(served.backend, turn, run.tokens(turn.id))


def test_preempted_sequences_resume_where_they_were(served: ServedModel) -> None:
    with Run(served) as run:
        batch = [
            make_request(f"b{i}", OTHER[i * 50 : i * 50 + 300] * 3, 100, priority=Priority.BATCH)
            for i in range(2)
        ]
        run.submit(*batch)
        for _ in range(20):
            run.step()
        person = make_request("p", TEXT[:400] * 2)
        run.serve(person)
        for one in [*batch, person]:
            assert_same(served.backend, one, run.tokens(one.id))


def test_a_saved_cache_serves_after_a_restart(served: ServedModel, tmp_path: Path) -> None:
    path = str(tmp_path / "cache")
    with Run(served) as before:
        before.serve(make_request("a", TEXT[:300], 20))
        before.core.save_cache(path)
    with Run(served, cache_file=path) as after:
        turn = make_request("b", (*TEXT[:300], *before.tokens("a"), *OTHER[:30]))
        after.serve(turn)
        assert after.cached("b") == 319
        assert_same(served.backend, turn, after.tokens("b"))


def test_a_draft_model_has_windows_or_no_state(architecture: Architecture, served: ServedModel) -> None:
    path = tiny_model_path(shape=architecture.name)
    more = {"kv_tokens": 1024, "max_seqs": 3, "kv_type": "f32", "threads": 1, "draft_model_path": str(path)}
    assert (served.backend.info.state_bytes > 0) == architecture.memory.has_state
    if architecture.memory.has_state:
        with pytest.raises(StartupError, match="cannot draft"), loaded(path, **more):
            pass
        return
    quoting = [make_request(f"q{i}", TEXT[i : i + 150], length=40) for i in range(3)]
    always = Experiment(always_drafts=True)
    with (
        loaded(path, **more) as backend,
        Run(ServedModel(backend, small_options(path, cache_bytes=2**26, experiment=always, **more))) as run,
    ):
        run.serve(*quoting)
    for one in quoting:
        assert_same(served.backend, one, run.tokens(one.id))
    assert run.num_drafted > 0


def assert_same(backend: LlamaBackend, one: GenerationRequest, found: Sequence[int]) -> None:
    assert len(found) == one.max_tokens
    expected = generate(backend, one.tokens, one.max_tokens, one.sampling, chunk=128)
    for at, (mine, right) in enumerate(zip(found, expected, strict=True)):
        if mine != right:
            text = (*one.tokens, *expected[:at])
            num_held = (len(text) - 2) // 128 * 128 or len(text) - 1
            with prefill(backend, 5, *(text[i : min(i + 128, num_held)] for i in range(0, num_held, 128))):
                top = dict(logprobs(backend, 5, num_held, text[num_held:]))
            assert abs(top[mine] - top[right]) < TIE, f"token {at}: {mine} instead of {right}"
            return


CHUNKS = (TEXT[:40], TEXT[40:64], TEXT[64:128])  # two blocks of 64

SLOW_TYPES = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("f32", "bf16")]


@pytest.fixture(scope="module", params=["f16", *SLOW_TYPES, "q8_0", "f16-plain"])
def pool(request: pytest.FixtureRequest, tiny: Path) -> Iterator[LlamaBackend]:
    """512 cells of each KV type. `plain` is without flash attention, where values are transposed."""
    kv_type, _, plain = request.param.partition("-")
    with loaded(tiny, kv_type=kv_type, flash_attention=not plain) as backend:
        yield backend


@pytest.fixture(scope="module")
def tight(tiny: Path) -> Iterator[LlamaBackend]:
    with loaded(tiny, kv_tokens=256) as backend:
        yield backend


def next_logprobs(backend: LlamaBackend, slot: int, start: int) -> tuple[Logprobs, Logprobs]:
    one = logprobs(backend, slot, start, TEXT[start : start + 1])
    return one, logprobs(backend, slot, start + 1, TEXT[start + 1 : start + 33])


def test_sharing_takes_no_cells(tight: LlamaBackend) -> None:
    with prefill(tight, 0, TEXT[:200]), ExitStack() as slots:
        for slot in range(1, 6):
            slots.enter_context(prefill(tight, slot))
            execute(tight, ShareCells(0, slot, 200))
        feed(tight, 5, 200, OTHER[:56])


def test_closing_the_source_leaves_the_sharers_intact(tight: LlamaBackend) -> None:
    with prefill(tight, 0, TEXT[:100]):
        expected = logprobs(tight, 0, 100, TEXT[100:110])
    with open_slot(tight, 0, TEXT[:100]):
        feed(tight, 0, 0, TEXT[:100])
        tight.execute(Step(verbs=(Open(1, GREEDY, TEXT, (), tight.info.vocab_size), ShareCells(0, 1, 100))))
        feed(tight, 0, 100, OTHER[:100])
    with prefill(tight, 2, OTHER[:140]):
        found = logprobs(tight, 1, 100, TEXT[100:110])
    execute(tight, Close(1))
    assert_close(found, expected)


def test_a_restored_prefix_gives_identical_logits(pool: LlamaBackend) -> None:
    with prefill(pool, 0, *CHUNKS), prefill(pool, 1), prefill(pool, 2):
        execute(pool, ShareCells(0, 1, 128), ShareCells(0, 2, 64))
        execute(pool, Save(1, 0, 64, block=1), Save(0, 64, 128, block=2))
        expected = next_logprobs(pool, 0, 128)
    with prefill(pool, 2, OTHER[:130]):
        pass  # the freed cells hold other tokens now
    with prefill(pool, 0):
        execute(pool, Restore(1, 0, 0, 64), Restore(2, 0, 64, 128))
        assert next_logprobs(pool, 0, 128) == expected
    with prefill(pool, 5, OTHER[:50]), prefill(pool, 2), prefill(pool, 4, *CHUNKS[:2]), prefill(pool, 1):
        execute(
            pool, Restore(1, 2, 0, 64), Restore(2, 2, 64, 128), ShareCells(4, 1, 64), Restore(2, 1, 64, 128)
        )
        for slot in (1, 2):
            for some, others in zip(next_logprobs(pool, slot, 128), expected, strict=True):
                assert_close(some, others)
    execute(pool, Drop(1), Drop(2))


@pytest.mark.parametrize(
    ("num_saved", "num_restored"),
    [
        *((64, 1), (64, 16), (64, 63), (17, 17), (41, 36)),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((64, 15), (64, 40), (1, 1), (40, 40), (41, 7))
        ),
    ],
)
def test_a_part_of_a_block_gives_identical_logits(
    pool: LlamaBackend, num_saved: int, num_restored: int
) -> None:
    text, rest = TEXT[64 : 64 + num_restored], TEXT[64 + num_restored : 128]
    with prefill(pool, 0, TEXT[:64], text):
        expected = next_logprobs(pool, 0, 64 + num_restored)
    with prefill(pool, 0, TEXT[:64], text, rest):
        execute(pool, Save(0, 0, 64, block=1), Save(0, 64, 64 + num_saved, block=2))
    with prefill(pool, 2):
        execute(pool, Restore(1, 2, 0, 64), Restore(2, 2, 64, 64 + num_restored))
        assert next_logprobs(pool, 2, 64 + num_restored) == expected
    execute(pool, Drop(1), Drop(2))


@pytest.mark.parametrize(
    "num_restored", [33, 16, *(pytest.param(one, marks=pytest.mark.slow) for one in (64, 40, 1))]
)
def test_restoring_takes_cells_in_whole_parts_of_sixteen(tight: LlamaBackend, num_restored: int) -> None:
    needed = -(-num_restored // 16) * 16
    with prefill(tight, 0, TEXT[:num_restored]):
        expected = logprobs(tight, 0, num_restored, TEXT[num_restored : num_restored + 1])
    with prefill(tight, 0, *(chunk for chunk in (TEXT[:num_restored], TEXT[num_restored:64]) if chunk)):
        execute(tight, Save(0, 0, 64, block=1))
    with fill_pool(tight, 256 - needed), prefill(tight, 0):
        execute(tight, Restore(1, 0, 0, num_restored))
        if num_restored < needed:
            assert_close(logprobs(tight, 0, num_restored, TEXT[num_restored : num_restored + 1]), expected)
    with (
        fill_pool(tight, 257 - needed),
        prefill(tight, 0),
        pytest.raises(DecodeFailed, match="Restored 0 of"),
    ):
        execute(tight, Restore(1, 0, 0, num_restored))
    execute(tight, Drop(1))


@contextmanager
def fill_pool(backend: LlamaBackend, cells: int) -> Iterator[None]:
    """Fill `cells` of the 256 cells by slot 1, and scatter the free ones between them."""
    free = 256 - cells
    with open_slot(backend, 1, OTHER):
        with open_slot(backend, 3, OTHER):
            for number in range(free):
                start, end = cells * number // free, cells * (number + 1) // free
                spans = (Span(1, start, OTHER[:1] * (end - start), False), Span(3, number, OTHER[:1], False))
                backend.execute(Step(spans=spans))
        yield


@pytest.mark.parametrize("window", [5, 8, 24])
def test_cells_are_saved_whole_however_narrow_the_window_is(tmp_path: Path, window: int) -> None:
    """llama.cpp leaves out what a window hides from the last cell that it saves together."""
    path = gemma3(tmp_path / "narrow.gguf", window=window)
    with loaded(path, kv_type="f32", threads=1) as backend:
        with prefill(backend, 0, TEXT[:64], TEXT[64:100], TEXT[100:120]):
            execute(backend, Save(0, 0, 64, block=1), Save(0, 64, 90, block=2))
        for end in (90, 70, 61):
            with prefill(backend, 1):
                execute(backend, Restore(1, 1, 0, min(64, end)))
                if end > 64:
                    execute(backend, Restore(2, 1, 64, end))
                found = logprobs(backend, 1, end, TEXT[end:100])
            with prefill(backend, 2, TEXT[:end]):
                assert_close(found, logprobs(backend, 2, end, TEXT[end:100]))
        execute(backend, Drop(1), Drop(2))


def test_verbs_of_an_interrupted_step_are_done(backend: LlamaBackend) -> None:
    verbs: tuple[Verb, ...] = (
        Save(0, 0, 64, block=1),
        Open(1, GREEDY, TEXT, (), backend.info.vocab_size),
        ShareCells(0, 1, 64),
        Open(2, GREEDY, TEXT, (), backend.info.vocab_size),
        Restore(1, 2, 0, 64),
    )
    with prefill(backend, 0, *CHUNKS):
        long = Span(1, 64, OTHER * 4, True)
        result = execute_and_interrupt(backend, Step(verbs=verbs, spans=(long,), padding=16))
        assert result == StepResult(interrupted=True, verbs_ms=result.verbs_ms)
        found = [logprobs(backend, slot, 64, TEXT[64:80]) for slot in (1, 2)]
    execute(backend, Close(1), Close(2), Drop(1))
    with prefill(backend, 0, *CHUNKS[:2]):
        expected = logprobs(backend, 0, 64, TEXT[64:80])
    for some in found:
        assert_close(some, expected)


INVALID = {
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
    "open a slot that is not there": Open(6, GREEDY, TEXT),
    "open twice": Open(0, GREEDY, TEXT),
    "no tokens": Step(spans=(Span(0, 64, (), False),)),
    "too many tokens": Step(spans=(Span(1, 0, (1,) * 257, False),)),
    "too much padding": Step(spans=(Span(1, 0, (1,) * 180, False),), padding=77),
    "only padding": Step(padding=1),
    "too many outputs": Step(spans=(Span(0, 64, (1,) * 100, False, (1,) * 100),)),
    "too many targets": Step(spans=(Span(0, 64, (1,), False, (1, 2)),)),
}


@pytest.mark.parametrize("wrong", INVALID.values(), ids=INVALID)
def test_verbs_and_steps_that_no_scheduler_may_send(tight: LlamaBackend, wrong: Verb | Step) -> None:
    with prefill(tight, 0, TEXT[:64]), prefill(tight, 1), prefill(tight, 2, OTHER[:5]):
        execute(tight, Save(0, 0, 64, block=7))
        with pytest.raises(AssertionError):
            tight.execute(wrong if isinstance(wrong, Step) else Step(verbs=(wrong,)))
    execute(tight, Drop(7))
