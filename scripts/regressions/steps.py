"""*steps*: whole steps of a model: ggml alone, with our kernels in front, and the machine's floor.

Both sides take turns, and the best of all rounds counts, because other work on the machine only makes a round
slower. No step can be shorter than the time to read its weights and cells, and to read and write its states,
with all threads; nor than its multiply-adds in loops that do nothing else (int8 for weights, float for
attention). Both speeds are measured at the start; the larger time is the floor.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.kernels.library import Kernel, library_path
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.measure.probe import Probe
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell
from regressions.kernels import best_of_both, kernel_library

_CHUNK, _LONGEST = 256, 512
_SLOTS = 64
_KV_TOKENS = 20_000
_PASSES = 9
"""The best counts; other work on the machine only makes one slower."""
_LOOPS = 3_000_000
"""Some 20 ms."""
_BUFFER_BYTES = 1 << 30


@dataclass(frozen=True)
class Situation:
    name: str
    timed: dict[int, int]
    """Tokens that each slot computes while the clock runs, in steps of at most `_CHUNK`."""
    context: int = 0
    """Cells of each of the first `num_holders` slots before that."""
    num_holders: int = 0
    chunk: int = _CHUNK

    def steps(self) -> Iterator[dict[int, int]]:
        left = dict(self.timed)
        while left:
            longest = max(left, key=left.__getitem__)
            others = sum(left.values()) - left[longest]
            step = {**left, longest: min(left[longest], self.chunk - others)}
            yield step
            left = {slot: count - step[slot] for slot, count in left.items() if count > step[slot]}


def situations() -> Iterator[Situation]:
    for rows in (1, 2, 4, 8, 16, 32, 64):
        yield Situation(f"decode, {rows} x nothing before", dict.fromkeys(range(rows), 1))
    for prompt in (256, 512):
        yield Situation(f"prompt, {prompt} in one step", {0: prompt}, chunk=prompt)
    decodes = dict.fromkeys(range(16), 1)
    yield Situation("decode, 16 x 300", decodes, 300, 16)
    for prompt in (112, 240):
        yield Situation(f"the same and {prompt} prompt tokens", {**decodes, 16: prompt}, 300, 16)
    for context in (4_000, 16_000):
        yield Situation(f"decode, 1 x {context:,}", {0: 1}, context, 1)
    yield Situation("prompt, 256 behind 3,840", {0: 256}, 3_840, 1)
    for prompt in (500, 2_000):
        yield Situation(f"prompt, {prompt:,} alone", {0: prompt})


class Peaks(NamedTuple):
    """Largest speeds of the machine, per second."""

    read_bytes: float
    int8_products: float
    float_products: float

    def __str__(self) -> str:
        return (
            f"{self.read_bytes / 1e9:.1f} GB/s read, {self.int8_products / 1e9:.0f} G int8 and "
            f"{self.float_products / 1e9:.0f} G float multiply-adds/s"
        )


class ModelWork:
    """Work of a model of the llama family, or with states, from the header. Routers of experts choose evenly,
    and windows reach over all cells."""

    def __init__(self, model: Path, kv_type: str, state_bytes: int) -> None:
        """`state_bytes`: of a sequence; each step reads and writes it."""
        header = GgufHeader(model)
        key = header.for_architecture
        matrices = {each.name: each for each in model_tensors(header) if len(each.shape) > 1}
        embedding = matrices.pop("token_embd.weight")
        self._output = matrices.pop("output.weight", embedding)
        self._experts = [matrices.pop(name) for name in list(matrices) if "_exps." in name]
        self._body = list(matrices.values())
        self._cell_bytes = bytes_per_cell(header, KVType.named(kv_type))
        self._state_bytes = state_bytes
        layers = header.get_int(key("block_count")) or 0
        heads = header.get_ints(key("attention.head_count"), layers) or [0] * layers
        default = (header.get_int(key("embedding_length")) or 0) // max(1, *heads)
        width = header.get_int(key("attention.key_length")) or default
        values_width = header.get_int(key("attention.value_length")) or default
        self._products_per_pair = sum(heads) * (width + values_width)
        used, count = header.get_int(key("expert_used_count")), header.get_int(key("expert_count"))
        self._used_share = used / count if used and count else 1.0

    def floors_ms(self, situation: Situation, peaks: Peaks) -> tuple[float, float]:
        """Return the times to read all and of the multiply-adds. Both kinds of these use the same units of
        the CPU, so their times add up."""
        filled = dict.fromkeys(range(situation.num_holders), situation.context)
        read_s = computing_s = 0.0
        for step in situation.steps():
            read_s += self._read_bytes(step, filled) / peaks.read_bytes
            pairs = sum(size * filled.get(slot, 0) + size * (size + 1) // 2 for slot, size in step.items())
            weights = sum(each.num_values for each in self._body)
            weights += sum(each.num_values for each in self._experts) * self._used_share
            products = sum(step.values()) * weights + len(step) * self._output.num_values
            computing_s += products / peaks.int8_products
            computing_s += pairs * self._products_per_pair / peaks.float_products
            filled |= {slot: filled.get(slot, 0) + size for slot, size in step.items()}
        return 1000 * read_s, 1000 * computing_s

    def _read_bytes(self, step: Mapping[int, int], filled: Mapping[int, int]) -> float:
        cells = sum(filled.get(slot, 0) + size for slot, size in step.items())
        touched_share = 1 - (1 - self._used_share) ** sum(step.values())
        return (
            sum(each.num_bytes for each in (*self._body, self._output))
            + touched_share * sum(each.num_bytes for each in self._experts)
            + cells * self._cell_bytes
            + 2 * len(step) * self._state_bytes
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--only", default="", metavar="TEXT", help="situations whose name has this in it")


def run(options: argparse.Namespace) -> None:
    library = kernel_library("steps")
    backend = LlamaBackend.load(
        EngineOptions(
            model_path=str(options.model), kv_tokens=_KV_TOKENS, max_seqs=_SLOTS, prefill_tokens=_LONGEST
        ),
        lambda fraction: None,
    )
    try:
        info = backend.info
        model, peaks = ModelWork(options.model, info.kv_type, info.state_bytes), measured_peaks(info.threads)
        print(f"kernels: {info.kernels.described}, {info.threads} threads, {info.kv_type} cells; {peaks}\n")
        print("| step | ggml, ms | ours, ms | ratio | ours, tokens/s | floor, ms | held by | ours reaches |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for situation in situations():
            if options.only in situation.name:
                with Probe(backend) as probe:
                    prepare(probe, situation)
                    work = functools.partial(timed, probe, situation)
                    ggml, ours = best_of_both(library, list(Kernel), work, options.rounds)
                memory, computing = model.floors_ms(situation, peaks)
                floor, held_by = max((memory, "memory"), (computing, "multiply-adds"))
                rate = 1000 * sum(situation.timed.values()) / ours
                print(
                    f"| {situation.name} | {ggml:.1f} | {ours:.1f} | {ggml / ours:.2f} | {rate:.0f} "
                    f"| {floor:.1f} | {held_by} | {floor / ours:.0%} |",
                    flush=True,
                )
    finally:
        backend.close()


def prepare(probe: Probe, situation: Situation) -> None:
    if situation.num_holders:
        for start in range(0, situation.context, _LONGEST):
            probe.compute({0: min(_LONGEST, situation.context - start)})
        probe.save(0)
        probe.close()


def timed(probe: Probe, situation: Situation) -> float:
    if situation.num_holders:
        probe.restore(range(situation.num_holders))
    ms = sum(map(probe.compute, situation.steps()))
    probe.close()
    return ms


def measured_peaks(threads: int) -> Peaks:
    """Measure for some seconds; nothing else should run."""
    library = ctypes.CDLL(str(library_path()))
    for name in ("ocs_multiply_bytes", "ocs_multiply_floats"):
        function = getattr(library, name)
        function.restype, function.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_void_p]
    library.ocs_read.restype = None
    library.ocs_read.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]
    buffer = np.ones(_BUFFER_BYTES // 8, np.int64)
    share = _BUFFER_BYTES // threads // 64 * 64

    def read(thread: int) -> float:
        library.ocs_read(buffer.ctypes.data + thread * share, share, ctypes.byref(ctypes.c_int32()))
        return share

    def multiply_bytes(thread: int) -> float:
        return float(library.ocs_multiply_bytes(_LOOPS, ctypes.byref(ctypes.c_int32())))

    def multiply_floats(thread: int) -> float:
        return float(library.ocs_multiply_floats(_LOOPS, ctypes.byref(ctypes.c_float(0.5))))

    kinds = (read, multiply_bytes, multiply_floats)
    return Peaks(*(max(_rate(work, threads) for _ in range(_PASSES)) for work in kinds))


def _rate(work: Callable[[int], float], threads: int) -> float:
    """Return the rate of all threads together; the slowest thread's time counts."""
    done: list[tuple[float, float, float]] = []
    barrier = threading.Barrier(threads)

    def run(thread: int) -> None:
        barrier.wait()
        start = time.perf_counter()
        amount = work(thread)
        done.append((amount, start, time.perf_counter()))

    workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    amounts, starts, ends = zip(*done, strict=True)
    return sum(amounts) / (max(ends) - min(starts))
