"""*steps*: whole steps of a model: ggml alone, with our kernels in front, and the machine's floor.

Both sides take turns, and the best of all rounds counts, because other work on the machine only makes a round
slower. No step can be shorter than the time to read its weights and cells, and to read and write its states,
with all threads; nor than its multiply-adds in loops that do nothing else (int8 for weights, float for
attention). Both speeds are measured at the start; the larger time is the floor.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.kernels.library import Kernel, KernelLibrary, library_path, obstacle
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.measure.probe import Probe
from regressions.roofline import ModelWork, Peaks, Work, measured_peaks

_CHUNK, _LONGEST = 256, 512
_SLOTS = 64
_KV_TOKENS = 20_000


@dataclass(frozen=True)
class Situation:
    name: str
    timed: dict[int, int]
    """Tokens that each slot computes while the clock runs, in steps of at most `_CHUNK`."""
    context: int = 0
    """Cells of each of the first `num_holders` slots before that."""
    num_holders: int = 0
    chunk: int = _CHUNK

    @property
    def num_tokens(self) -> int:
        return sum(self.timed.values())

    def steps(self) -> Iterator[dict[int, int]]:
        left = dict(self.timed)
        while left:
            longest = max(left, key=left.__getitem__)
            others = sum(left.values()) - left[longest]
            step = {**left, longest: min(left[longest], self.chunk - others)}
            yield step
            left = {slot: count - step[slot] for slot, count in left.items() if count > step[slot]}

    def work(self, model: ModelWork) -> Work:
        held, total = dict.fromkeys(range(self.num_holders), self.context), Work()
        for step in self.steps():
            total += model.step(step, held)
            held |= {slot: held.get(slot, 0) + size for slot, size in step.items()}
        return total


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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--only", default="", metavar="TEXT", help="situations whose name has this in it")


def run(asked: argparse.Namespace) -> int:
    if why_not := obstacle():
        print(f"steps: {why_not}", file=sys.stderr)
        return 1
    options = EngineOptions(
        model_path=str(asked.model), kv_tokens=_KV_TOKENS, max_seqs=_SLOTS, prefill_tokens=_LONGEST
    )
    backend = LlamaBackend.load(options, lambda fraction: None)
    try:
        model = ModelWork.of(asked.model, backend.info.kv_type, backend.info.state_bytes)
        bench = _Bench(backend, asked.rounds, measured_peaks(backend.info.threads), model)
        print(bench.heading)
        for situation in situations():
            if asked.only in situation.name:
                print(bench.row(situation), flush=True)
    finally:
        backend.close()
    return 0


class _Bench:
    def __init__(self, backend: Backend, rounds: int, peaks: Peaks, model: ModelWork) -> None:
        self._backend = backend
        self._rounds = rounds
        self._peaks = peaks
        self._model = model
        self._library = KernelLibrary(ctypes.CDLL(str(library_path())))

    @property
    def heading(self) -> str:
        info = self._backend.info
        return (
            f"kernels: {info.kernels.described}, {info.threads} threads, {info.kv_type} cells; "
            f"{self._peaks}\n\n"
            "| step | ggml, ms | ours, ms | ratio | ours, tokens/s | floor, ms | held by | ours reaches |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- |"
        )

    def row(self, situation: Situation) -> str:
        ggml, ours = self._measured(situation)
        rate = 1000 * situation.num_tokens / ours
        return (
            f"| {situation.name} | {ggml:.1f} | {ours:.1f} | {ggml / ours:.2f} | {rate:.0f} "
            f"| {self._floor(situation, ours)} |"
        )

    def _floor(self, situation: Situation, ours: float) -> str:
        work = situation.work(self._model)
        floor = work.floor_ms(self._peaks)
        held_by = "memory" if work.is_held_by_memory(self._peaks) else "multiply-adds"
        return f"{floor:.1f} | {held_by} | {floor / ours:.0%}"

    def _measured(self, situation: Situation) -> tuple[float, float]:
        best = [float("inf"), float("inf")]
        with Probe(self._backend) as probe:
            self._prepare(probe, situation)
            for _ in range(self._rounds):
                for is_ours in (False, True):
                    if situation.num_holders:
                        probe.restore(range(situation.num_holders))
                    self._switch(is_on=is_ours)
                    best[is_ours] = min(best[is_ours], sum(map(probe.compute, situation.steps())))
                    probe.close()
            self._switch(is_on=True)
        return best[False], best[True]

    def _prepare(self, probe: Probe, situation: Situation) -> None:
        if not situation.num_holders:
            return
        for start in range(0, situation.context, _LONGEST):
            probe.compute({0: min(_LONGEST, situation.context - start)})
        probe.save(0)
        probe.close()

    def _switch(self, *, is_on: bool) -> None:
        for kernel in Kernel:
            (self._library.switch_on if is_on else self._library.switch_off)(kernel)
