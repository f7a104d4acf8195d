"""The kernel of recurrent layers against plain loops over doubles, ggml, and itself in other batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from openai_cpu_server.contract.step import Span, Step
from openai_cpu_server.kernels.graphs import (
    ConvolutionCase,
    DeltaNetCase,
    Floats,
    GgmlGraphs,
    RecurrentCase,
    ScanCase,
)
from openai_cpu_server.kernels.library import Kernel, KernelLibrary
from openai_cpu_server.llama.backend import LlamaBackend
from tests.kernels.library import compute_with
from tests.llama.driver import loaded, open_slot
from tests.tiny_model import tiny_model_path

Doubles = npt.NDArray[np.float64]
READS = {
    "stays": (1, 2, 3),
    "new cells": (4, 5, 6),
    "shared": (5, 5, 1),
    "in each other's place": (2, 3, 1),
    "one moves": (1, 6, 3),
}  # cells that the sequences read; they write those from 1 on


def normal(random: np.random.Generator, *shape: int) -> Floats:
    return random.standard_normal(shape, np.float32)


def delta_net(
    *, tokens: int, reads: tuple[int, ...], num_states: int = 1, width: int = 64, per_column: bool = False
) -> DeltaNetCase:
    random = np.random.default_rng(tokens)
    shape, heads = (len(reads), tokens), 4
    return DeltaNetCase(
        states=normal(random, 7 * num_states, heads * width * width),
        reads=reads,
        first=1,
        num_states=num_states,
        queries=normal(random, *shape, heads // 2, width),
        keys=normal(random, *shape, heads // 2, width) / np.sqrt(width, dtype=np.float32),
        values=normal(random, *shape, heads, width),
        gates=-np.abs(normal(random, *shape, heads, width if per_column else 1)),
        betas=random.random((*shape, heads, 1), np.float32),
    )


def scan(*, tokens: int, reads: tuple[int, ...], num_states: int = 1, single_rows: bool = False) -> ScanCase:
    random = np.random.default_rng(tokens)
    heads, rows, width = (70, 1, 16) if single_rows else (4, 24, 64)
    shape = len(reads), tokens
    return ScanCase(
        states=normal(random, 7 * num_states, heads * rows * width),
        reads=reads,
        first=1,
        num_states=num_states,
        x=normal(random, *shape, heads, rows),
        steps=normal(random, *shape, heads),
        decays=-np.abs(normal(random, heads, width if single_rows else 1)),
        b=normal(random, *shape, 2, width),
        c=normal(random, *shape, 2, width),
    )


def convolution(
    *, tokens: int, reads: tuple[int, ...], num_states: int = 1, taps: int = 4, has_bias: bool = True
) -> ConvolutionCase:
    random = np.random.default_rng(tokens)
    channels = 1040
    return ConvolutionCase(
        states=normal(random, 7 * num_states, channels * (taps - 1)),
        reads=reads,
        first=1,
        num_states=num_states,
        inputs=normal(random, len(reads), tokens, channels),
        weights=normal(random, channels, taps),
        bias=normal(random, channels) if has_bias else None,
        has_silu=has_bias,
    )


CASES: dict[str, Callable[..., RecurrentCase]] = {
    "delta net": delta_net,
    "delta net of 128": lambda **shape: delta_net(width=128, **shape),
    "delta net with gates of columns": lambda **shape: delta_net(per_column=True, **shape),
    "scan of Mamba 2": scan,
    "scan of Mamba 1": lambda **shape: scan(single_rows=True, **shape),
    "convolution of 4": convolution,
    "convolution of 3, alone": lambda **shape: convolution(taps=3, has_bias=False, **shape),
    "convolution of 2": lambda **shape: convolution(taps=2, **shape),
}


def exact_result(case: RecurrentCase) -> Doubles:
    """Compute the results, then the whole memory, by plain loops."""
    results, memory = [], case.states.astype(np.float64)
    cells = len(memory) // case.num_states
    for sequence, read in enumerate(case.reads):
        state, last = case.states[read].astype(np.float64), []
        for token in range(shape_of(case)[1]):
            result, state = next_state(case, sequence, token, state)
            results.append(result.ravel())
            last.insert(0, state.ravel())
        for age, state in enumerate(last[: case.num_states]):
            memory[age * cells + case.first + sequence] = state
    return np.concatenate([np.concatenate(results), memory.ravel()])


def shape_of(case: RecurrentCase) -> tuple[int, int]:
    inputs = {DeltaNetCase: "values", ScanCase: "x", ConvolutionCase: "inputs"}[type(case)]
    sequences, tokens = getattr(case, inputs).shape[:2]
    return sequences, tokens


def next_state(case: RecurrentCase, sequence: int, token: int, state: Doubles) -> tuple[Doubles, Doubles]:
    def of(values: Floats) -> Doubles:
        return values[sequence, token].astype(np.float64)

    if isinstance(case, ConvolutionCase):
        window = np.column_stack([state.reshape(len(case.weights), -1), of(case.inputs)])
        sums = (window * case.weights).sum(axis=1) + (0 if case.bias is None else case.bias)
        return sums / (1 + np.exp(-sums)) if case.has_silu else sums, window[:, 1:]
    if isinstance(case, ScanCase):
        heads, rows = case.x.shape[2:]
        steps = np.log1p(np.exp(of(case.steps)))[:, None]
        b, c = (np.repeat(of(each), heads // each.shape[2], axis=0) for each in (case.b, case.c))
        decayed = np.exp(steps * case.decays)[:, None] * state.reshape(heads, rows, -1)
        state = decayed + (steps * of(case.x))[..., None] * b[:, None]
        return (state * c[:, None]).sum(axis=-1), state
    heads, width = case.values.shape[2:]
    queries, keys = (np.tile(of(each), (heads // each.shape[2], 1)) for each in (case.queries, case.keys))
    state = state.reshape(heads, width, width) * np.exp(of(case.gates))[:, None]
    differences = of(case.betas) * (of(case.values) - (state * keys[:, None]).sum(axis=-1))
    state = state + differences[..., None] * keys[:, None]
    return (state * queries[:, None]).sum(axis=-1) / np.sqrt(width), state


@pytest.fixture
def compute(library: KernelLibrary, graphs: GgmlGraphs) -> Callable[..., Floats]:
    def compute(case: RecurrentCase, *, threads: int = 2) -> Floats:
        with graphs.recurring(case) as run:
            return compute_with(library, Kernel.RECURRENT, run, threads)

    return compute


Compute = Callable[..., Floats]


def is_close(found: Floats, exact: Doubles) -> bool:
    return bool(np.all(np.abs(found - exact) <= 2e-5 * np.maximum(1, np.abs(exact).max())))


@pytest.mark.parametrize("reads", READS.values(), ids=READS)
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_states(compute: Compute, make: Callable[..., RecurrentCase], reads: tuple[int, ...]) -> None:
    for tokens in (1, 5, 70):
        case = make(tokens=tokens, reads=reads)
        assert is_close(compute(case), exact_result(case))


@pytest.mark.parametrize("name", [name for name in CASES if name != "scan of Mamba 1"])
def test_states_of_earlier_tokens_are_kept(compute: Compute, name: str) -> None:
    """A few tokens have fewer states than requested, and other memory stays. Mamba 1 stores none of them."""
    make = CASES[name]
    for tokens in (1, 2, 9, 40):
        for reads in ((1, 2, 3), (3, 9, 2)):
            case = make(tokens=tokens, reads=reads, num_states=3)
            assert is_close(compute(case), exact_result(case))


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_threads_and_cuts_change_nothing(compute: Compute, make: Callable[..., RecurrentCase]) -> None:
    """Results are equal to the last bit, so that a greedy answer depends neither on other requests nor on
    the steps of a prompt."""
    case = make(tokens=19, reads=(4, 2, 6))
    together = compute(case)
    for threads in (1, 3):
        assert np.array_equal(compute(case, threads=threads), together)
    size = (len(together) - case.states.size) // 3
    for sequence in range(3):
        alone = compute(part_of(case, sequence, 0, 19))
        assert np.array_equal(alone[:size], together[sequence * size : (sequence + 1) * size])
    case = make(tokens=90, reads=(1,))
    whole, pieces, states = compute(case), [], case.states
    for start, end in ((0, 1), (1, 2), (2, 37), (37, 90)):
        found = compute(msgspec.structs.replace(part_of(case, 0, start, end), states=states))
        pieces.append(found[: -states.size])
        states = found[-states.size :].reshape(states.shape)
    assert np.array_equal(np.concatenate([*pieces, states.ravel()]), whole)


def part_of(case: RecurrentCase, sequence: int, start: int, end: int) -> RecurrentCase:
    shape = shape_of(case)
    values = msgspec.structs.asdict(case)
    cut = {
        name: value[sequence : sequence + 1, start:end]
        for name, value in values.items()
        if isinstance(value, np.ndarray) and value.ndim > 2 and value.shape[:2] == shape
    }
    return msgspec.structs.replace(case, reads=case.reads[sequence : sequence + 1], **cut)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_results_are_as_close_to_exact_as_those_of_ggml_and_a_broken_sequence_spoils_no_other(
    graphs: GgmlGraphs, compute: Compute, make: Callable[..., RecurrentCase]
) -> None:
    case = make(tokens=20, reads=(1, 2, 3))
    exact = exact_result(case)
    with graphs.recurring(case) as run:
        theirs = np.std(run(2) - exact)
    healthy = compute(case)
    assert np.std(healthy - exact) <= 1.5 * theirs + 1e-7
    size = (len(healthy) - case.states.size) // 3
    for broken in (np.nan, np.inf):
        case.states[2, 5] = broken
        found = compute(case)
        assert not np.isfinite(found[size : 2 * size]).all()
        for first, last in ((0, size), (2 * size, 3 * size)):
            assert np.array_equal(found[first:last], healthy[first:last])


@pytest.mark.parametrize("name", ["tiny-mamba", "tiny-qwen35", "tiny-granitehybrid", "tiny-lfm2"])
def test_whole_models_compute_the_same_without_the_kernel(library: KernelLibrary, name: str) -> None:
    """Steps have different subsets of four sequences."""
    found = []
    with loaded(tiny_model_path(shape=name), kernels="off", kv_type="f32", threads=2) as backend:
        for is_on in (False, True):
            (library.switch_on if is_on else library.switch_off)(Kernel.RECURRENT)
            found.append(step_logprobs(backend))
    assert np.allclose(found[0], found[1], atol=0.01)


def step_logprobs(backend: LlamaBackend) -> Floats:
    """Return log-probabilities after each step's tokens, in the order of the vocabulary."""
    found, lengths = [], dict.fromkeys(range(4), 0)
    steps: list[dict[int, int]] = [{0: 70}, {0: 1}, {0: 1, 1: 20}, {0: 1, 1: 1, 2: 5, 3: 3}, {3: 1, 0: 1}]
    steps += [{1: 9, 2: 1}, {2: 1, 0: 1, 3: 2}, {0: 1, 1: 1, 2: 1, 3: 1}, {1: 130, 3: 1}]
    vocab = backend.info.vocab_size
    with ExitStack() as slots:
        for slot in lengths:
            slots.enter_context(open_slot(backend, slot, (), top_logprobs=vocab))
        for step in steps:
            spans = [
                Span(slot, lengths[slot], tuple(3 + (7 * i + slot) % (vocab - 10) for i in range(size)), True)
                for slot, size in step.items()
            ]
            result = backend.execute(Step(spans=tuple(spans)))
            for slot, size in step.items():
                lengths[slot] += size
                logprob = result.samples[slot].logprob
                found.append([value for _, value in sorted(logprob.top)])
    return np.array(found, np.float32)
