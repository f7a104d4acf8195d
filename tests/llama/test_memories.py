"""Every kind of memory gives what full attention gives: shared, saved, interrupted, preempted, drafted."""

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
    asked,
    assert_close,
    do,
    execute_and_press,
    feed,
    generate,
    holding,
    loaded,
    logprobs,
    opened,
    small,
)
from tests.llama.odd_models import gemma3
from tests.tiny_model import tiny_model_path

TEXT = tuple(3 + (7 * i * i + 3 * i) % (VOCAB - 10) for i in range(400))
OTHER = tuple(3 + (5 * i * i + 11 * i) % (VOCAB - 10) for i in range(400))
TIE = 0.05  # steps of other sizes round differently: so far apart may two logprobs be that would be equal


@dataclass
class Served:
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
def served(architecture: Architecture) -> Iterator[Served]:
    path = tiny_model_path(shape=architecture.name)
    more = {"kv_tokens": 2048, "max_seqs": 6, "prefill_tokens": 256, "kv_type": "f32", "threads": 1}
    if architecture.name in ASSISTANTS:
        more["draft_model_path"] = str(tiny_model_path(shape=ASSISTANTS[architecture.name]))
    with loaded(path, **more) as backend:
        yield Served(backend, small(path, cache_bytes=2**26, **more))


def assert_computed(backend: LlamaBackend, text: Sequence[int], got: Logprobs) -> None:
    with holding(backend, 3, text[:-1]):
        assert_close(got, logprobs(backend, 3, len(text) - 1, text[-1:]), TIE)


def test_a_beginning_is_shared_saved_and_restored(served: Served) -> None:
    backend = served.backend
    text = TEXT[:150] + OTHER[:20]
    with holding(backend, 0, text[:150], text[150:169]):
        want = logprobs(backend, 0, 169, text[169:])
    with holding(backend, 0, OTHER[:30]), holding(backend, 4, TEXT[:64], TEXT[64:150]):
        do(backend, *saved(backend, 4, 150))
        feed(backend, 4, 150, TEXT[150:250])
        with holding(backend, 1, OTHER[:128], OTHER[128:256]):
            with holding(backend, 2):
                do(backend, ShareCells(4, 2, 150), *restored_state(backend, 2, 150))
                feed(backend, 2, 150, text[150:169])
                assert_close(logprobs(backend, 2, 169, text[169:]), want, TIE)
            with holding(backend, 3):
                do(backend, Restore(1, 3, 0, 64), Restore(2, 3, 64, 128), Restore(3, 3, 128, 150))
                do(backend, *restored_state(backend, 3, 150))
                feed(backend, 3, 150, text[150:169])
                assert_close(logprobs(backend, 3, 169, text[169:]), want, TIE)
    numbers = (1, 2, 3, 4) if backend.info.state_bytes else (1, 2, 3)
    do(backend, *map(Drop, numbers))


def saved(backend: LlamaBackend, slot: int, end: int) -> list[Save | SaveState]:
    borders = [*range(0, end, 64), end]
    cells = [Save(slot, start, stop, i) for i, (start, stop) in enumerate(pairwise(borders), 1)]
    return [*cells, SaveState(slot, end, 4)] if backend.info.state_bytes else cells


def restored_state(backend: LlamaBackend, slot: int, end: int) -> tuple[RestoreState, ...]:
    return (RestoreState(4, slot, end),) if backend.info.state_bytes else ()


def test_an_interrupted_step_leaves_no_trace(served: Served) -> None:
    backend = served.backend
    texts = TEXT[:256], OTHER[:41], OTHER[:80]
    with holding(backend, 0, TEXT[:100]), holding(backend, 1, OTHER[:40]), holding(backend, 2):
        starts = (100, 40, 0)
        draft = () if backend.info.max_draft == 0 else (7,)
        spans = (Span(n, start, texts[n][start:], True, draft=draft) for n, start in enumerate(starts))
        step = Step(spans=tuple(spans))
        for at_node in (1, 5, 20, 60):
            assert execute_and_press(backend, step, at_node=at_node).interrupted
        result = execute_and_press(backend, step, may=False)
    assert not result.interrupted
    for slot, text in enumerate(texts):
        assert_computed(backend, text, result.samples[slot].logprob.top)


def test_those_who_are_left_out_of_an_interrupted_step_keep_theirs(served: Served) -> None:
    """llama.cpp moves the states of a step together where places of ended sequences lie between them."""
    backend = served.backend
    texts = [TEXT[i : i + 60] for i in range(0, 180, 30)]
    with ExitStack() as held:
        gone = ExitStack()
        for slot in range(6):
            (gone if slot in (1, 3) else held).enter_context(holding(backend, slot, texts[slot]))
        gone.close()
        more = {0: OTHER[:1], 2: OTHER[:128], 5: OTHER[:60]}
        step = Step(spans=tuple(Span(slot, 60, tokens, True) for slot, tokens in more.items()))
        for at_node in (1, 30):
            assert execute_and_press(backend, step, at_node=at_node).interrupted
        got = {4: logprobs(backend, 4, 60, OTHER[:20])}
        result = backend.execute(step)
    for slot, sample in result.samples.items():
        got[slot] = sample.logprob.top
    for slot, tokens in {**more, 4: OTHER[:20]}.items():
        with holding(backend, 1, texts[slot]):
            assert_close(got[slot], logprobs(backend, 1, 60, tokens), TIE)


def test_drafts_change_no_answer(served: Served) -> None:
    quoting = [asked(f"q{i}", (TEXT[i : i + 40] * 4)[: 150 + i], length=40) for i in range(3)]
    with Run(served, experiment=Experiment(always_drafts=True)) as run:
        run.serve(*quoting)
    for one in quoting:
        assert_same(served.backend, one, run.tokens(one.id))
    assert (run.num_drafted > 0) == (served.backend.info.max_draft != 0)


def test_wrong_drafts_of_some_leave_no_trace_in_steps_of_several(served: Served) -> None:
    """llama.cpp moves a state when others compute together, and not what it keeps to go back to."""
    backend = served.backend
    most = 2 if backend.info.max_draft is None else backend.info.max_draft
    wrong = TEXT[7], OTHER[9]
    lengths = ["010", "100", "000", "001", "010", "101", "120", "211", "220"]
    texts = [list(TEXT[:60]), list(OTHER[:96]), list(OTHER[100:230])]
    found = []
    with ExitStack() as stack:
        for slot in (1, 0, 2):  # so that the first one's state lies between those of the others
            stack.enter_context(holding(backend, slot, texts[slot][:-1]))
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
    """An engine's core over the backend, in which it leaves nothing behind."""

    def __init__(self, served: Served, **more: object) -> None:
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


def test_requests_that_begin_alike_compute_that_once(served: Served) -> None:
    backend = served.backend
    requests = [asked(f"r{i}", TEXT[:300] + OTHER[20 * i : 20 * i + 30]) for i in range(5)]
    with Run(served) as run:
        run.serve(*requests)
        assert sorted(run.cached(one.id) for one in requests) == [0, 300, 300, 300, 300]
        for one in requests:
            assert_same(backend, one, run.tokens(one.id))
        # Again, and now from the cache; and the next turn of one of them.
        late = asked("late", TEXT[:300] + OTHER[200:240])
        turn = asked("turn", (*requests[2].tokens, *run.tokens("r2"), *OTHER[300:320]))
        run.serve(late, turn)
        assert run.cached("late") == 300
        assert run.cached("turn") >= 300
        assert_same(backend, late, run.tokens("late"))
        assert_same(backend, turn, run.tokens("turn"))


def test_a_conversation_goes_on_where_it_was(served: Served) -> None:
    with Run(served) as run:
        tokens = TEXT[:100]
        for number in range(4):
            turn = asked(f"t{number}", tokens, length=80)
            run.serve(turn)
            tokens = (*tokens, *run.tokens(turn.id), *OTHER[10 * number : 10 * number + 5])
        assert [run.cached(f"t{i}") for i in range(4)] == [0, 179, 264, 349]
        assert_same(served.backend, turn, run.tokens(turn.id))


def test_preempted_sequences_resume_where_they_were(served: Served) -> None:
    with Run(served) as run:
        batch = [
            asked(f"b{i}", OTHER[i * 50 : i * 50 + 300] * 3, 100, priority=Priority.BATCH) for i in range(2)
        ]
        run.submit(*batch)
        for _ in range(20):
            run.step()
        person = asked("p", TEXT[:400] * 2)
        run.serve(person)
        for one in [*batch, person]:
            assert_same(served.backend, one, run.tokens(one.id))


def test_a_saved_cache_serves_after_a_restart(served: Served, tmp_path: Path) -> None:
    path = str(tmp_path / "cache")
    with Run(served) as before:
        before.serve(asked("a", TEXT[:300], 20))
        before.core.save_cache(path)
    with Run(served, cache_file=path) as after:
        turn = asked("b", (*TEXT[:300], *before.tokens("a"), *OTHER[:30]))
        after.serve(turn)
        assert after.cached("b") == 319
        assert_same(served.backend, turn, after.tokens("b"))


def test_a_draft_model_has_windows_or_no_state(architecture: Architecture, served: Served) -> None:
    path = tiny_model_path(shape=architecture.name)
    more = {"kv_tokens": 1024, "max_seqs": 3, "kv_type": "f32", "threads": 1, "draft_model_path": str(path)}
    assert (served.backend.info.state_bytes > 0) == architecture.memory.has_state
    if architecture.memory.has_state:
        with pytest.raises(StartupError, match="cannot draft"), loaded(path, **more):
            pass
        return
    quoting = [asked(f"q{i}", TEXT[i : i + 150], length=40) for i in range(3)]
    always = Experiment(always_drafts=True)
    with (
        loaded(path, **more) as backend,
        Run(Served(backend, small(path, cache_bytes=2**26, experiment=always, **more))) as run,
    ):
        run.serve(*quoting)
    for one in quoting:
        assert_same(served.backend, one, run.tokens(one.id))
    assert run.num_drafted > 0


def assert_same(backend: LlamaBackend, one: GenerationRequest, got: Sequence[int]) -> None:
    assert len(got) == one.max_tokens
    want = generate(backend, one.tokens, one.max_tokens, one.sampling, chunk=128)
    for at, (mine, right) in enumerate(zip(got, want, strict=True)):
        if mine != right:
            text = (*one.tokens, *want[:at])
            held = (len(text) - 2) // 128 * 128 or len(text) - 1
            with holding(backend, 5, *(text[i : min(i + 128, held)] for i in range(0, held, 128))):
                top = dict(logprobs(backend, 5, held, text[held:]))
            assert abs(top[mine] - top[right]) < TIE, f"token {at}: {mine} instead of {right}"
            return


CHUNKS = (TEXT[:40], TEXT[40:64], TEXT[64:128])  # two blocks of 64

SELDOM = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("f32", "bf16")]


@pytest.fixture(scope="module", params=["f16", *SELDOM, "q8_0", "f16-plain"])
def pool(request: pytest.FixtureRequest, tiny: Path) -> Iterator[LlamaBackend]:
    """512 cells of each KV type; `plain`: values lie the other way round without flash attention."""
    kv_type, _, plain = request.param.partition("-")
    with loaded(tiny, kv_type=kv_type, flash_attention=not plain) as backend:
        yield backend


@pytest.fixture(scope="module")
def tight(tiny: Path) -> Iterator[LlamaBackend]:
    with loaded(tiny, kv_tokens=256) as backend:
        yield backend


def nexts(backend: LlamaBackend, slot: int, start: int) -> tuple[Logprobs, Logprobs]:
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
        feed(tight, 0, 0, TEXT[:100])
        tight.execute(Step(verbs=(Open(1, GREEDY, TEXT, (), tight.info.vocab_size), ShareCells(0, 1, 100))))
        feed(tight, 0, 100, OTHER[:100])
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
    with loaded(path, kv_type="f32", threads=1) as backend:
        with holding(backend, 0, TEXT[:64], TEXT[64:100], TEXT[100:120]):
            do(backend, Save(0, 0, 64, block=1), Save(0, 64, 90, block=2))
        for end in (90, 70, 61):
            with holding(backend, 1):
                do(backend, Restore(1, 1, 0, min(64, end)))
                if end > 64:
                    do(backend, Restore(2, 1, 64, end))
                found = logprobs(backend, 1, end, TEXT[end:100])
            with holding(backend, 2, TEXT[:end]):
                assert_close(found, logprobs(backend, 2, end, TEXT[end:100]))
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
        long = Span(1, 64, OTHER * 4, True)
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
    "open a slot that is not there": Open(6, GREEDY, TEXT),
    "open twice": Open(0, GREEDY, TEXT),
    "no tokens": Step(spans=(Span(0, 64, (), False),)),
    "too many tokens": Step(spans=(Span(1, 0, (1,) * 257, False),)),
    "too much padding": Step(spans=(Span(1, 0, (1,) * 180, False),), padding=77),
    "only padding": Step(padding=1),
    "too many outputs": Step(spans=(Span(0, 64, (1,) * 100, False, (1,) * 100),)),
    "too many targets": Step(spans=(Span(0, 64, (1,), False, (1, 2)),)),
}


@pytest.mark.parametrize("wrong", NEVER.values(), ids=NEVER)
def test_what_no_scheduler_may_ask_for(tight: LlamaBackend, wrong: Verb | Step) -> None:
    with holding(tight, 0, TEXT[:64]), holding(tight, 1), holding(tight, 2, OTHER[:5]):
        do(tight, Save(0, 0, 64, block=7))
        with pytest.raises(AssertionError):
            tight.execute(wrong if isinstance(wrong, Step) else Step(verbs=(wrong,)))
    do(tight, Drop(7))
