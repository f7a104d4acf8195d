"""Helpers that drive a backend as a scheduler would, with one sequence or several."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.contract.messages import EngineOptions, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.contract.step import Close, Open, Sample, Span, Step, StepResult, Verb
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.cells.context import OwnedContext
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.model.model import native_log
from tests.engine.driver import Engine
from tests.fakes import SPECULATION

GREEDY = Sampling(seed=0, temperature=0)
ENDLESS = Sampling(seed=0, temperature=0, ignore_eos=True)
TEXT = tuple(1 + (7 * i * i + 3 * i) % 900 for i in range(250))
OTHER = tuple(1 + (5 * i * i + 11 * i) % 900 for i in range(200))
OFF, ALWAYS = (EngineOptions(model_path="", **SPECULATION[kind]) for kind in ("off", "always"))
TOLERANCE = 0.02  # cells in another order, and steps of other sizes, round differently (docs/measurements.md)

Logprobs = tuple[tuple[int, float], ...]  # of the whole vocabulary, best first


def small_options(model: Path, **more: object) -> EngineOptions:
    """Options of a small backend whose results do not depend on the size of a step."""
    sizes = {"kv_tokens": 512, "max_seqs": 6, "prefill_tokens": 256}
    return EngineOptions(**{"model_path": str(model), "kernels": "invariant", **sizes, **more})


@contextmanager
def loaded(model: Path, machine: Machine | None = None, **more: object) -> Iterator[LlamaBackend]:
    backend = LlamaBackend.load(small_options(model, **more), lambda fraction: None, machine)
    try:
        yield backend
    finally:
        backend.close()


class SmallMachine(Machine):
    def __init__(self, folder: Path, free_bytes: int) -> None:
        (folder / "cgroup").write_text("0::/\n")
        (folder / "memory.max").write_text(f"{free_bytes}\n")
        (folder / "memory.current").write_text("0\n")
        super().__init__(cgroups=folder, process=folder)


@contextmanager
def native_lines() -> Iterator[list[str]]:
    lines: list[str] = []
    callback = llama_cpp.llama_log_callback(
        lambda level, text, data: lines.append(text.decode(errors="replace"))
    )
    log = native_log()
    llama_cpp.llama_log_set(callback, None)
    try:
        yield lines
    finally:
        log.install()


def execute(backend: LlamaBackend, *verbs: Verb) -> None:
    result = backend.execute(Step(verbs=verbs))
    assert result == StepResult(verbs_ms=result.verbs_ms)


@contextmanager
def open_slot(
    backend: LlamaBackend,
    slot: int,
    prompt: Sequence[int],
    sampling: Sampling = GREEDY,
    *,
    top_logprobs: int | None = None,
) -> Iterator[None]:
    verb = Open(slot, sampling, tuple(prompt), (), top_logprobs)
    backend.execute(Step(verbs=(verb,)))
    try:
        yield
    finally:
        backend.execute(Step(verbs=(Close(slot),)))


def sample_token(
    backend: LlamaBackend, slot: int, start: int, tokens: Sequence[int], *, sample: bool = True
) -> Sample:
    result = backend.execute(Step(spans=(Span(slot, start, tuple(tokens), sample),)))
    assert not result.interrupted
    return result.samples.get(slot)


feed = functools.partial(sample_token, sample=False)


@contextmanager
def prefill(backend: LlamaBackend, slot: int, *chunks: Sequence[int]) -> Iterator[None]:
    tokens = [token for chunk in chunks for token in chunk]
    with open_slot(backend, slot, tokens, top_logprobs=backend.info.vocab_size):
        start = 0
        for chunk in chunks:
            feed(backend, slot, start, chunk)
            start += len(chunk)
        yield


def logprobs(backend: LlamaBackend, slot: int, start: int, tokens: Sequence[int]) -> Logprobs:
    logprob = sample_token(backend, slot, start, tokens).logprob
    assert len(logprob.top) == backend.info.vocab_size
    return logprob.top


def assert_close(found: Logprobs, expected: Logprobs, tolerance: float = TOLERANCE) -> None:
    by_token = dict(expected)
    assert [logprob for _, logprob in found] == pytest.approx([by_token[t] for t, _ in found], abs=tolerance)


@contextmanager
def repeated_interrupts(
    interrupt: Callable[[], None], context: OwnedContext, at_node: int = 1
) -> Iterator[None]:
    """Call `interrupt` after a node of the graph and after each later one, from the abort callback.

    The context's own switch still decides whether to abort."""
    params = llama_cpp.llama_context_default_params()
    context._abort.connect(params)
    nodes = itertools.count(1)

    @llama_cpp.ggml_abort_callback
    def call_interrupt(data: int) -> bool:
        if next(nodes) >= at_node:
            interrupt()
        return bool(params.abort_callback(data))

    llama_cpp.llama_set_abort_callback(context.handle, call_interrupt, params.abort_callback_data)
    try:
        yield
    finally:
        llama_cpp.llama_set_abort_callback(context.handle, params.abort_callback, params.abort_callback_data)


def execute_and_interrupt(
    backend: LlamaBackend, step: Step, *, is_allowed: bool = True, at_node: int = 1
) -> StepResult:
    with repeated_interrupts(backend.interrupt, backend._loaded.context, at_node):
        return backend.execute(msgspec.structs.replace(step, may_be_interrupted=is_allowed))


def generate(
    backend: LlamaBackend,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling = GREEDY,
    *,
    slot: int = 0,
    chunk: int | None = None,
) -> list[int]:
    with open_slot(backend, slot, prompt, sampling):
        size = chunk or len(prompt)
        last = (len(prompt) - 1) // size * size
        for start in range(0, last, size):
            feed(backend, slot, start, prompt[start : start + size])
        output = [sample_token(backend, slot, last, prompt[last:]).token]
        while len(output) < count:
            output.append(sample_token(backend, slot, len(prompt) + len(output) - 1, output[-1:]).token)
    return output


def make_request(name: str, prompt: Sequence[int], length: int = 12, **more: object) -> GenerationRequest:
    return GenerationRequest(
        **{"id": name, "tokens": tuple(prompt), "max_tokens": length, "sampling": ENDLESS, **more}
    )


def answers(
    backend: LlamaBackend, options: EngineOptions, *requests: GenerationRequest, output: Sequence[int] = ()
) -> dict[str, TokenEvent]:
    engine = Engine(options, backend)
    engine.serve(*requests, output=output)
    return {one.id: engine.whole(one.id) for one in requests}
