"""*kernels*: products of weights, ggml's against ours, by type and number of rows.

With `--experts` those of a mixture: each row goes through some of them, chosen at random. There are so many
copies of the weights that no cache holds them, as in a model. Both sides take turns, and the best of all
rounds counts, because other work on the machine only makes a round slower. One thread alone is measured by
its CPU time, so that the machine may be busy.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llama_cpp._ggml import libggml

from openai_cpu_server.kernels.graphs import PRODUCT_TYPES, GgmlGraphs, ProductCase, random_weights
from openai_cpu_server.kernels.library import Kernel, KernelLibrary, library_path, obstacle
from openai_cpu_server.kernels.tensors import GgmlType, Packed

_WEIGHT_BYTES = 100_000_000
_LEAST_ROUNDS = 9
_TYPES = {kind.name.lower(): kind for kind in PRODUCT_TYPES}


@dataclass(frozen=True)
class Times:
    ggml: float
    ours: float


def _best(compute: Callable[[int], object], threads: int, so_far: float) -> float:
    clock = time.thread_time if threads == 1 else time.perf_counter
    start = clock()
    compute(threads)
    return min(so_far, clock() - start)


def _measure(
    graphs: GgmlGraphs, library: KernelLibrary, case: ProductCase, copies: int, asked: argparse.Namespace
) -> Times:
    ggml = ours = float("inf")
    with graphs.multiplying(case, copies=copies) as multiply:
        end, rounds = time.perf_counter() + asked.seconds, 0
        while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
            rounds += 1
            library.switch_off(Kernel.PRODUCTS)
            ggml = _best(multiply, asked.threads, ggml)
            library.switch_on(Kernel.PRODUCTS)
            ours = _best(multiply, asked.threads, ours)
    return Times(ggml / copies, ours / copies)


def _case(
    kind: GgmlType, weights: Packed, rows: int, asked: argparse.Namespace, random: np.random.Generator
) -> ProductCase:
    activations = random.standard_normal((rows, asked.depth), np.float32)
    if asked.experts == 1:
        return ProductCase(weights=weights, activations=activations, weight_type=kind)
    chosen = random.random((rows, asked.experts)).argsort(axis=1)[:, : asked.used].astype(np.int32)
    return ProductCase(weights=weights, activations=activations[:, None], weight_type=kind, experts=chosen)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--types", nargs="+", choices=_TYPES, default=list(_TYPES))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 256], metavar="N")
    parser.add_argument("--experts", type=int, default=1, metavar="N", help="matrices of a mixture")
    parser.add_argument("--used", type=int, default=8, metavar="N", help="experts of a row of a mixture")
    parser.add_argument("--outputs", type=int, default=2048, metavar="N", help="rows of weights")
    parser.add_argument("--depth", type=int, default=2048, metavar="N", help="a multiple of 256")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.7, help="for each line (default %(default)s)")


def run(asked: argparse.Namespace) -> int:
    if why_not := obstacle():
        print(f"kernels: {why_not}", file=sys.stderr)
        return 1
    graphs, library = GgmlGraphs(libggml), KernelLibrary(ctypes.CDLL(str(library_path())))
    random = np.random.default_rng(0)
    shape = (asked.experts, asked.outputs, asked.depth)[asked.experts == 1 :]
    print(f"{' x '.join(map(str, shape))}, {asked.threads} threads, {library.instruction_set}\n")
    print(
        "| type | rows | ggml, ms | ours, ms | ratio | ours, G multiply-adds/s |\n|---|---|---|---|---|---|"
    )
    for name in asked.types:
        weights = random_weights(_TYPES[name], asked.experts * asked.outputs, asked.depth, random)
        for rows in asked.rows:
            case = _case(_TYPES[name], weights.reshape(*shape[:-1], -1), rows, asked, random)
            read = weights.nbytes * (1 if case.experts is None else min(1, case.experts.size / asked.experts))
            copies = max(1, int(_WEIGHT_BYTES / read) // (1 if rows <= 32 else 4))
            times = _measure(graphs, library, case, copies, asked)
            speed = math.prod(case.shape) * asked.depth / times.ours / 1e9
            print(
                f"| {name} | {rows} | {times.ggml * 1e3:.3f} | {times.ours * 1e3:.3f} "
                f"| {times.ggml / times.ours:.2f} | {speed:.0f} |",
                flush=True,
            )
    return 0
