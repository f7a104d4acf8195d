"""*huge pages*: CPU time of decoding steps with weights in a mapped file against weights in huge pages.

Both engines are in this process and take turns step by step, on one thread, so disturbances affect both; the
fastest and the median step of each count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bench.options import gguf

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.contract.step import Close, Open, Span, Step
from openai_cpu_server.llama.backend import LlamaBackend

_ROWS = (1, 4, 16)
_WARM_STEPS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=gguf, help="GGUF")
    parser.add_argument("--steps", type=int, default=100, help="of each engine and number of sequences")


def run(asked: argparse.Namespace) -> None:
    backends = [_loaded(asked.model, reads_weights=reads) for reads in (False, True)]
    print(*(line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if "AnonHuge" in line))
    for rows in _ROWS:
        mapped, read = _times_ms(backends, rows, asked.steps)
        for what, figure in (("fastest", min), ("median", statistics.median)):
            one, other = figure(mapped), figure(read)
            print(f"{rows:2} rows, {what}: mapped {one:.2f} ms, huge pages {other:.2f} ms, {other / one:.3f}")
    for backend in backends:
        backend.close()


def _loaded(model: Path, *, reads_weights: bool) -> LlamaBackend:
    options = EngineOptions(
        model_path=str(model), kv_tokens=4096, max_seqs=max(_ROWS), threads=1, reads_weights=reads_weights
    )
    return LlamaBackend.load(options, lambda fraction: None)


def _times_ms(backends: Sequence[LlamaBackend], rows: int, num_steps: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in backends]
    opening = tuple(Open(slot, Sampling(seed=slot), (300 + slot,)) for slot in range(rows))
    for start in range(num_steps):
        spans = tuple(Span(slot, start, (300 + slot,), sample=True) for slot in range(rows))
        for backend, own in zip(backends, times, strict=True):
            began_s = time.thread_time()
            backend.execute(Step(opening if start == 0 else (), spans))
            own.append(1000 * (time.thread_time() - began_s))
    for backend in backends:
        backend.execute(Step(tuple(Close(slot) for slot in range(rows))))
    return [own[_WARM_STEPS:] for own in times]
