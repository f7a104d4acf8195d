"""Steps of the real backend: outputs, padding, memory that does not grow, faults that end one sequence."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from openai_cpu_server.contract.request import Constraint, Sampling
from openai_cpu_server.contract.step import (
    Close,
    Drop,
    Open,
    Restore,
    Save,
    SavedBlock,
    Span,
    Step,
    TokenLogprob,
)
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.cells.context import (
    AbortSwitch,
    Context,
    ContextOptions,
    DecodeFailed,
    SlotContent,
    TokenBatch,
)
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.grammar.constraints import ConstrainedOutput
from openai_cpu_server.llama.host import ComputeThreads
from openai_cpu_server.llama.model.kv_size import KVType
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.sampler import BadLogits
from tests.fakes import Panic
from tests.llama.driver import (
    GREEDY,
    TEXT,
    TOLERANCE,
    execute,
    feed,
    generate,
    loaded,
    open_slot,
    prefill,
    sample_token,
)
from tests.llama.odd_models import poisoned
from tests.structured.making import gbnf_to_lark
from tests.waiting import wait_until

PROMPT = TEXT[:60]


def scores(backend: LlamaBackend, prompt: tuple[int, ...], chunk: int) -> list[TokenLogprob]:
    found: list[TokenLogprob] = []
    with open_slot(backend, 0, prompt, top_logprobs=backend.info.vocab_size):
        for start in range(0, len(prompt), chunk):
            tokens, targets = prompt[start : start + chunk], prompt[start + 1 : start + 1 + chunk]
            result = backend.execute(Step(spans=(Span(0, start, tokens, False, targets),)))
            found += result.scores.get(0, ())
    return found


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_prompts_in_chunks_continue_as_prompts_in_one_piece(backend: LlamaBackend, chunk: int) -> None:
    assert generate(backend, PROMPT, 16, chunk=chunk) == generate(backend, PROMPT, 16)


def test_targets_score_as_teacher_forcing_does(backend: LlamaBackend) -> None:
    forced = []
    with open_slot(backend, 0, PROMPT, top_logprobs=backend.info.vocab_size):
        for position, token in enumerate(PROMPT[:-1]):
            logprob = sample_token(backend, 0, position, [token]).logprob
            forced.append(dict(logprob.top)[PROMPT[position + 1]])
    for chunk in (60, 7):
        found = scores(backend, PROMPT, chunk)
        assert [score.token for score in found] == list(PROMPT[1:])
        assert [score.logprob for score in found] == pytest.approx(forced, abs=TOLERANCE)


def test_a_token_can_be_target_and_sample_at_once(backend: LlamaBackend) -> None:
    with open_slot(backend, 0, PROMPT, top_logprobs=1):
        result = backend.execute(Step(spans=(Span(0, 0, PROMPT, True, (*PROMPT[1:], 5)),)))
    sample = result.samples[0]
    assert len(result.scores[0]) == len(PROMPT)
    assert result.scores[0][-1].top == sample.logprob.top == ((sample.token, sample.logprob.logprob),)


def test_log_probabilities_are_a_distribution_that_sampling_does_not_change(backend: LlamaBackend) -> None:
    tops = []
    odd = Sampling(seed=1, temperature=3.0, logit_bias={9: 50.0}, repeat_penalty=2.0)
    letters = Constraint(grammar=gbnf_to_lark("root ::= [a-z]{3,8}"))
    for sampling, constraint in ((GREEDY, None), (odd, None), (GREEDY, letters)):
        backend.execute(Step((Open(0, sampling, PROMPT, (), backend.info.vocab_size, constraint),)))
        sample = sample_token(backend, 0, 0, PROMPT)
        backend.execute(Step((Close(0),)))
        tops.append(sample.logprob.top)
        assert dict(tops[-1])[sample.token] == sample.logprob.logprob
    values = [logprob for _, logprob in tops[0]]
    assert len({token for token, _ in tops[0]}) == backend.info.vocab_size
    assert np.exp(values).sum() == pytest.approx(1)
    assert values == sorted(values, reverse=True)
    assert tops[0] == tops[1] == tops[2]


def test_interrupting_when_nothing_runs_hits_the_next_step_if_that_may_be_interrupted(
    backend: LlamaBackend, tiny: Path
) -> None:
    first, second = generate(backend, PROMPT, 2)
    long = Step(spans=(Span(0, 0, PROMPT, True),), may_be_interrupted=True)
    with open_slot(backend, 0, PROMPT):
        backend.interrupt()
        assert backend.execute(long).interrupted
        assert backend.execute(long).samples[0].token == first
        backend.interrupt()
        assert sample_token(backend, 0, len(PROMPT), (first,)).token == second
    with open_slot(backend, 0, PROMPT):
        assert backend.execute(long).samples[0].token == first
    with loaded(tiny) as closed:
        pass
    closed.interrupt()


def test_targets_and_steps_without_outputs_can_be_padded(backend: LlamaBackend) -> None:
    with open_slot(backend, 0, TEXT[:9]), open_slot(backend, 1, TEXT[:9]):
        silent = Span(0, 0, TEXT[:9], False)
        assert backend.execute(Step(spans=(silent,), padding=7)).samples == {}
        span = Span(1, 0, TEXT[:9], True, TEXT[1:9])
        result = backend.execute(Step(spans=(span,), padding=7))
    assert (list(result.samples), len(result.scores[1])) == ([1], 8)


def test_padding_gives_its_cells_back_and_is_left_out_where_the_pool_is_full(tiny: Path) -> None:
    """The pool of 256 cells would be too small for these steps if padding kept its cells."""
    with loaded(tiny, kv_tokens=256) as backend:
        with prefill(backend, 0, TEXT[:200]):
            for position in range(200, 240):
                spans = (Span(0, position, TEXT[position : position + 1], False),)
                backend.execute(Step(spans=spans, padding=16))
            feed(backend, 0, 240, TEXT[:16])
        results = []
        for padding in (12, 0):
            with prefill(backend, 0, TEXT), open_slot(backend, 1, TEXT):
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


def compute(context: Context, *spans: Span) -> bool:
    batch = TokenBatch(context.batch_tokens)
    batch.fill(spans)
    return context.decode(batch)


def test_free_cells_are_used_wherever_they_lie(context: Context) -> None:
    """All cells are in use; then a slot frees every fourth run of four: 64 cells in 16 places."""
    for start in range(0, 256, 16):
        spans = [Span(slot, start // 4, (300,) * 4, False) for slot in range(4)]
        assert compute(context, *spans)
    context.free_slot(2)
    assert compute(context, Span(2, 0, (300,) * 64, True))


def test_errors_name_a_full_pool_and_a_gap_in_the_positions(context: Context) -> None:
    with pytest.raises(DecodeFailed, match="llama_decode returned -1"):
        compute(context, Span(0, 0, (300,), True), Span(0, 7, (301,), True))
    context.clear()
    for start in range(0, 256, 64):
        compute(context, Span(0, start, (300,) * 64, False))
    with pytest.raises(DecodeFailed, match="No free KV cells for 1 tokens"):
        compute(context, Span(1, 0, (300,), True))


def test_damaged_cells_are_refused_and_change_nothing(context: Context) -> None:
    compute(context, Span(0, 0, TOKENS, False))
    data = np.empty(context.saved_bytes(0, SlotContent.CELLS), np.uint8)
    context.save(0, data, SlotContent.CELLS)
    for wrong in (np.zeros(1000, np.uint8), data[:100], data[:-1], np.append(data, np.uint8(0))):
        with pytest.raises(DecodeFailed, match="Restored"):
            context.restore(3, wrong, SlotContent.CELLS)
        context.free_slot(3)
    with pytest.raises(DecodeFailed, match="Saved 0 bytes"):
        context.save(0, data[:-1], SlotContent.CELLS)
    assert [context.num_positions(slot) for slot in range(4)] == [20, 0, 0, 0]
    for start in range(0, 236, 59):
        assert compute(context, Span(1, start, (300,) * 59, True))


def test_closing_twice_is_closing_once(context: Context) -> None:
    context.close()
    context.close()
    with pytest.raises(AssertionError, match="closed"):
        context.num_positions(0)


EVERY_SAMPLER = Sampling(
    seed=1,
    top_p=0.9,
    top_k=40,
    min_p=0.01,
    typical_p=0.9,
    repeat_penalty=1.1,
    presence_penalty=0.1,
    logit_bias={5: 1.0},
)
SHORT_PROMPT = tuple(range(300, 310))


def use_slots(backend: LlamaBackend, times: int, constraint: Constraint | None = None) -> None:
    for number in range(times):
        slot = number % backend.info.max_seqs
        verb = Open(slot, EVERY_SAMPLER, SHORT_PROMPT, (), 5, constraint)
        backend.execute(Step(verbs=(verb,), spans=(Span(slot, 0, SHORT_PROMPT, True, SHORT_PROMPT[1:9]),)))
        backend.execute(Step(verbs=(Close(slot),)))


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def threads() -> set[int]:
    """Return the native ids of the threads, which the system does not reuse within these tests."""
    return {thread.id for thread in psutil.Process().threads()}


BRACKETS = Constraint(grammar=gbnf_to_lark('root ::= "[" [a-z]+ "]"'), opening=(5,), triggers=("x", "["))


@pytest.mark.parametrize("constraint", [None, BRACKETS], ids=["free", "constrained"])
def test_open_and_closed_slots_leak_nothing(backend: LlamaBackend, constraint: Constraint | None) -> None:
    use_slots(backend, 50, constraint)
    files, memory = psutil.Process().num_fds(), resident()
    use_slots(backend, 100, constraint)
    assert psutil.Process().num_fds() <= files
    assert resident() - memory < 2**20


def test_saving_and_dropping_blocks_leaks_nothing(backend: LlamaBackend) -> None:

    def save_and_drop(times: int) -> int:
        starts = range(0, 2048, 64)
        with prefill(backend, 0, (300,) * 2048):
            for number in range(times):
                execute(backend, *(Save(0, start, start + 64, 32 * number + start // 64) for start in starts))
        with_blocks = resident()
        execute(backend, *(Drop(number) for number in range(32 * times)))
        return with_blocks

    save_and_drop(2)
    memory = resident()
    peaks = [save_and_drop(50) for _ in range(2)]
    assert min(peaks) - memory > 64 * 2**20 < 2 * (peaks[0] - memory)
    assert resident() - memory < 72 * 2**20
    assert max(peaks) - peaks[0] < 8 * 2**20


def test_writing_and_mapping_the_prefix_cache_leaks_nothing(backend: LlamaBackend, tmp_path: Path) -> None:
    path = str(tmp_path / "prefixes.kv")
    block = SavedBlock(1, None, "", (300,) * 64)

    def write_and_map() -> None:
        with prefill(backend, 0, block.tokens):
            execute(backend, Save(0, 0, 64, 1))
        backend.export_cache(path, [block])
        execute(backend, Drop(1))
        assert backend.import_cache(path) == (block,)
        with prefill(backend, 0):
            execute(backend, Restore(1, 0, 0, 64))
        execute(backend, Drop(1))

    write_and_map()
    process = psutil.Process()
    files, maps = process.num_fds(), len(process.memory_maps(grouped=False))
    for _ in range(20):
        write_and_map()
    assert process.num_fds() <= files
    assert len(process.memory_maps(grouped=False)) - maps < 5


def test_loading_and_closing_leaks_nothing(tiny: Path) -> None:
    def load_and_close() -> None:
        with Vocabulary.open(tiny) as vocabulary:
            vocabulary.encode("text", add_special=True, parse_special=True)
        with loaded(tiny, kv_tokens=4096, max_seqs=8, threads=1) as backend:
            use_slots(backend, 2)
            backend.close()

    for _ in range(3):
        load_and_close()
    files, running, memory = psutil.Process().num_fds(), threads(), resident()
    for _ in range(5):
        load_and_close()
    assert psutil.Process().num_fds() <= files
    wait_until(lambda: threads() <= running)  # the system takes a while to remove a joined thread
    assert resident() - memory < 8 * 2**20


POISON = 77
GOOD, BAD = (5, 6, 7), (5, POISON, 7)


@pytest.fixture(scope="module")
def model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return poisoned(tiny, tmp_path_factory.mktemp("poisoned") / "model.gguf", token=POISON)


@pytest.fixture(scope="module")
def poisoned_backend(model: Path) -> Iterator[LlamaBackend]:
    with loaded(model) as poisoned_backend:
        yield poisoned_backend


def remaining_tokens(poisoned_backend: LlamaBackend, first: int) -> list[int]:
    tokens = [first]
    for position in range(len(GOOD), len(GOOD) + 4):
        tokens.append(sample_token(poisoned_backend, 0, position, tokens[-1:]).token)
    poisoned_backend.execute(Step(verbs=(Close(0),)))
    return tokens


def tokens_alone(poisoned_backend: LlamaBackend, sampling: Sampling) -> list[int]:
    poisoned_backend.execute(Step(verbs=(Open(0, sampling, GOOD),)))
    return remaining_tokens(poisoned_backend, sample_token(poisoned_backend, 0, 0, GOOD).token)


@pytest.mark.parametrize("targets", [(), BAD[1:]], ids=["sampled", "scored"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=3, temperature=1.0, top_k=40)], ids=str)
def test_a_sequence_of_nan_ends(
    poisoned_backend: LlamaBackend, sampling: Sampling, targets: tuple[int, ...]
) -> None:
    expected = tokens_alone(poisoned_backend, sampling)
    poisoned_backend.execute(Step(verbs=(Open(0, sampling, GOOD), Open(1, sampling, BAD))))
    result = poisoned_backend.execute(
        Step(spans=(Span(1, 0, BAD, not targets, targets), Span(0, 0, GOOD, True)))
    )
    assert set(result.faults) == {1}
    assert "BadLogits" in result.faults[1]
    assert (result.failures, result.scores, set(result.samples)) == ({}, {}, {0})
    poisoned_backend.execute(Step(verbs=(Close(1),)))
    assert remaining_tokens(poisoned_backend, result.samples[0].token) == expected
    assert tokens_alone(poisoned_backend, sampling) == expected


def test_nan_fails_the_whole_step_without_flash_attention(model: Path) -> None:
    """Plain attention multiplies the cells of other sequences by 0, and 0 times NaN is NaN."""
    with loaded(model, flash_attention=False) as poisoned_backend:
        poisoned_backend.execute(Step(verbs=(Open(0, GREEDY, GOOD), Open(1, GREEDY, BAD))))
        with pytest.raises(BadLogits):
            poisoned_backend.execute(Step(spans=(Span(1, 0, BAD, True), Span(0, 0, GOOD, True))))


def test_a_panic_is_a_fault_of_its_sequence(
    poisoned_backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:

    def panic(self: ConstrainedOutput) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr(ConstrainedOutput, "allowed", panic)
    constraint = Constraint(grammar=gbnf_to_lark('root ::= "a" | "b"'))
    poisoned_backend.execute(
        Step(verbs=(Open(0, GREEDY, GOOD), Open(1, GREEDY, GOOD, constraint=constraint)))
    )
    result = poisoned_backend.execute(Step(spans=(Span(1, 0, GOOD, True), Span(0, 0, GOOD, True))))
    assert (set(result.faults), set(result.failures), set(result.samples)) == ({1}, set(), {0})
    poisoned_backend.execute(Step(verbs=(Close(0), Close(1))))
