"""*attention*: a layer's attention, ggml's against ours: wide heads, latent attention, windows.

Layers that share a mask are computed as one graph, as in a step, with keys and values of their own. Both
sides take turns, and the best of all rounds counts, because other work on the machine only makes a round
slower. With one thread its CPU time counts, which other processes do not lengthen.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from bench.traffic import Failed
from llama_cpp._ggml import libggml

from openai_cpu_server.kernels.graphs import AttentionCase, Floats, GgmlGraphs, GgmlType
from openai_cpu_server.kernels.library import Kernel
from regressions.kernels import best_of_both, computing_s, kernel_library

_LAYERS = 4
_LEAST_ROUNDS = 5
_PAD = 256
"""llama.cpp attends over a multiple of this many cells."""
_TYPES = {kind.name.lower(): kind for kind in (GgmlType.F16, GgmlType.BF16, GgmlType.Q8_0)}


@dataclass(frozen=True)
class Heads:
    name: str
    heads: int
    kv_heads: int
    width: int
    value_width: int


_DENSE = Heads("1 B", 32, 8, 64, 64)
_LARGE = Heads("8 B", 32, 8, 128, 128)
_WIDE = Heads("heads of 512 (Gemma 4)", 8, 1, 512, 512)
_LATENT = Heads("latent (DeepSeek), 16 heads", 16, 1, 576, 512)
_LATENT_MANY = Heads("latent (DeepSeek), 128 heads", 128, 1, 576, 512)
_WINDOW = Heads("window of 128 (gpt-oss)", 64, 8, 64, 64)
_WINDOW_ONE = Heads("window of 512 (Gemma 3 270M)", 4, 1, 256, 256)


@dataclass(frozen=True)
class Situation:
    heads: Heads
    sequences: int
    cells: int
    prompt: int = 0
    unseen: int = 0
    """Cells of the pool that no sequence of the step sees."""

    @property
    def name(self) -> str:
        what = f"prompt of {self.prompt} behind" if self.prompt else f"{self.sequences} x"
        unseen = f", {self.unseen:,} cells not seen" if self.heads.name.startswith("window") else ""
        return f"{self.heads.name}: {what} {self.cells:,}{unseen}"

    def case(self, cell_type: GgmlType) -> AttentionCase:
        random, heads = np.random.default_rng(0), self.heads
        mask = self._mask()
        rows, cells = mask.shape
        is_latent = heads.value_width < heads.width
        k = random.standard_normal((cells, heads.kv_heads, heads.width), np.float32)
        return AttentionCase(
            q=random.standard_normal((rows, heads.heads, heads.width), np.float32),
            k=k,
            v=k[:, :, : heads.value_width] if is_latent else k,
            mask=mask,
            cell_type=cell_type,
            values_in_keys=is_latent,
            scale=heads.width**-0.5,
        )

    def _mask(self) -> Floats:
        used = self.unseen + self.sequences * self.cells + self.prompt
        mask = np.full((self.prompt or self.sequences, -used % _PAD + used), -np.inf, np.float32)
        for sequence in range(self.sequences):
            start = self.unseen + sequence * self.cells
            rows = slice(None) if self.prompt else sequence
            mask[rows, start : start + self.cells] = 0
        for row in range(self.prompt):
            mask[row, used - self.prompt : used - self.prompt + row + 1] = 0
        return mask


def situations() -> Iterator[Situation]:
    for heads in (_DENSE, _WIDE, _LATENT, _LATENT_MANY):
        yield Situation(heads, 1, 4_000)
        yield Situation(heads, 16, 500)
        yield Situation(heads, 1, 500, prompt=128)
    for before in (2_000, 8_000):
        yield Situation(_DENSE, 1, before, prompt=256)
        yield Situation(_LARGE, 1, before, prompt=256)
    for heads, window in ((_WINDOW, 128), (_WINDOW_ONE, 512)):
        for unseen in (0, 4_000, 16_000):
            yield Situation(heads, 16, window, unseen=unseen)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", choices=_TYPES, default="f16", help="their type (default %(default)s)")
    parser.add_argument("--tiles", action="store_true", help="with AMX tiles")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line (default %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="situations whose name has this in it")


def run(options: argparse.Namespace) -> None:
    graphs, library, threads = GgmlGraphs(libggml), kernel_library("attention"), options.threads
    kernels = [Kernel.ATTENTION, Kernel.ATTENTION_TILES] if options.tiles else [Kernel.ATTENTION]
    if options.tiles and library.why_no_tiles:
        raise Failed(f"attention: {library.why_no_tiles}")
    print(f"{options.cells} cells, {threads} threads, {library.instruction_set}; a layer\n")
    print("| rows and cells | ggml, ms | ours, ms | ratio | ours, G multiply-adds/s |\n|---|---|---|---|---|")
    for situation in situations():
        if options.only not in situation.name:
            continue
        case = situation.case(_TYPES[options.cells])
        layers = [case, *(msgspec.structs.replace(case) for _ in range(_LAYERS - 1))]
        with graphs.attending(*layers) as compute:
            timed = functools.partial(computing_s, compute, threads)
            best = best_of_both(library, kernels, timed, _LEAST_ROUNDS, options.seconds)
        ggml, ours = (seconds / _LAYERS for seconds in best)
        pairs = int(np.isfinite(case.mask).sum()) if case.mask is not None else 0
        products = pairs * case.q.shape[1] * (case.k.shape[2] + case.v.shape[2])
        print(
            f"| {situation.name} | {ggml * 1e3:.3f} | {ours * 1e3:.3f} | {ggml / ours:.2f} "
            f"| {products / ours / 1e9:.0f} |",
            flush=True,
        )
