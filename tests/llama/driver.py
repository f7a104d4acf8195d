"""Drives a backend as a scheduler would, for one sequence at a time or some together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.contract.step import Close, Open, Sample, Span, Step
from openai_cpu_server.llama.backend import LlamaBackend

GREEDY = Sampling(seed=0, temperature=0)


@contextmanager
def opened(
    backend: LlamaBackend,
    slot: int,
    prompt: Sequence[int],
    sampling: Sampling = GREEDY,
    *,
    output: Sequence[int] = (),
    top_logprobs: int | None = None,
) -> Iterator[None]:
    verb = Open(slot, sampling, tuple(prompt), tuple(output), top_logprobs)
    backend.execute(Step(verbs=(verb,)))
    try:
        yield
    finally:
        backend.execute(Step(verbs=(Close(slot),)))


def feed(
    backend: LlamaBackend, slot: int, start: int, tokens: Sequence[int], *, sample: bool = True
) -> Sample | None:
    """Compute tokens of one slot in a step of their own."""
    result = backend.execute(Step(spans=(Span(slot, start, tuple(tokens), sample),)))
    assert not result.interrupted
    return result.samples.get(slot)


def sampled(backend: LlamaBackend, slot: int, start: int, tokens: Sequence[int]) -> Sample:
    sample = feed(backend, slot, start, tokens)
    assert sample is not None
    return sample


def generate(
    backend: LlamaBackend,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling = GREEDY,
    *,
    slot: int = 0,
    chunk: int | None = None,
) -> list[int]:
    """Open, compute the prompt in chunks, sample `count` tokens one by one, close."""
    with opened(backend, slot, prompt, sampling):
        size = chunk or len(prompt)
        last = (len(prompt) - 1) // size * size
        for start in range(0, last, size):
            feed(backend, slot, start, prompt[start : start + size], sample=False)
        output = [sampled(backend, slot, last, prompt[last:]).token]
        while len(output) < count:
            output.append(sampled(backend, slot, len(prompt) + len(output) - 1, output[-1:]).token)
    return output
