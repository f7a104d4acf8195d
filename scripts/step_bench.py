#!/usr/bin/env python3
"""Measures whole steps of a model: ggml alone against ggml with our kernels in front.

    .venv/bin/python scripts/step_bench.py MODEL [--rounds 3] [--only decode]

Both compute in turn; the best of all rounds counts, for whatever else the machine does only makes a round
slower.
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
from openai_cpu_server.kernels.build import LIBRARY
from openai_cpu_server.kernels.library import Kernel, Library, obstacle, put_in_front
from openai_cpu_server.llama.measure.probe import Probe

_CHUNK = 256
"""Tokens of a step that reads a prompt."""
_SLOTS = 64
_KV_TOKENS = 20_000


@dataclass(frozen=True)
class Situation:
    name: str
    timed: dict[int, int]
    """The tokens that each slot computes while the clock runs, in steps of at most `_CHUNK`."""
    context: int = 0
    """The cells that each of the first `num_holders` slots has before that."""
    num_holders: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(self.timed.values())


def situations() -> Iterator[Situation]:
    for rows in (1, 2, 4, 8, 16, 32, 64):
        yield Situation(f"decode, {rows} x nothing before", dict.fromkeys(range(rows), 1))
    decodes = dict.fromkeys(range(16), 1)
    yield Situation("decode, 16 x 300", decodes, 300, 16)
    for prompt in (112, 240):
        yield Situation(f"the same and {prompt} prompt tokens", {**decodes, 16: prompt}, 300, 16)
    for context in (4_000, 16_000):
        yield Situation(f"decode, 1 x {context:,}", {0: 1}, context, 1)
    yield Situation("prompt, 256 behind 3,840", {0: 256}, 3_840, 1)
    for prompt in (500, 2_000):
        yield Situation(f"prompt, {prompt:,} alone", {0: prompt})


def main() -> int:
    """Prints a table in Markdown; returns 1 where there are no kernels."""
    args = _parser().parse_args()
    if why_not := obstacle():
        print(f"step_bench: {why_not}", file=sys.stderr)
        return 1
    put_in_front()
    from openai_cpu_server.llama.backend import LlamaBackend  # after the library that stands in front of ggml

    options = EngineOptions(
        model_path=str(args.model), kv_tokens=_KV_TOKENS, max_seqs=_SLOTS, prefill_tokens=_CHUNK
    )
    backend = LlamaBackend.load(options, lambda fraction: None)
    print(f"kernels: {backend.info.kernels.described}, {backend.info.threads} threads\n")
    print("| step | ggml, ms | ours, ms | ratio | ours, tokens/s |\n| --- | --- | --- | --- | --- |")
    try:
        for situation in situations():
            if args.only in situation.name:
                _show(situation, *_measured(backend, situation, args.rounds))
    finally:
        backend.close()
    return 0


def _measured(backend: Backend, situation: Situation, rounds: int) -> tuple[float, float]:
    """Milliseconds with ggml alone, and with ours."""
    library = Library(ctypes.CDLL(str(LIBRARY)))
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for is_ours in (False, True):
            with Probe(backend) as probe:
                _switch(
                    library, is_on=True
                )  # what comes before the clock starts is computed as fast as can be
                _prepare(probe, situation)
                _switch(library, is_on=is_ours)
                best[is_ours] = min(best[is_ours], _timed(probe, situation))
                probe.close()
    _switch(library, is_on=True)
    return best[False], best[True]


def _prepare(probe: Probe, situation: Situation) -> None:
    if situation.num_holders:
        for start in range(0, situation.context, _CHUNK):
            probe.compute({0: min(_CHUNK, situation.context - start)})
    if situation.num_holders > 1:
        probe.copy(0, range(1, situation.num_holders))


def _timed(probe: Probe, situation: Situation) -> float:
    ms, left = 0.0, dict(situation.timed)
    while left:
        longest = max(left, key=left.__getitem__)
        others = sum(left.values()) - left[longest]
        step = {**left, longest: min(left[longest], _CHUNK - others)}
        ms += probe.compute(step)
        left = {slot: count - step[slot] for slot, count in left.items() if count > step[slot]}
    return ms


def _switch(library: Library, *, is_on: bool) -> None:
    for kernel in Kernel:
        (library.switch_on if is_on else library.switch_off)(kernel)


def _show(situation: Situation, ggml: float, ours: float) -> None:
    rate = 1000 * situation.num_tokens / ours
    print(f"| {situation.name} | {ggml:.1f} | {ours:.1f} | {ggml / ours:.2f} | {rate:.0f} |", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--only", default="", metavar="TEXT", help="situations whose name has this in it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
